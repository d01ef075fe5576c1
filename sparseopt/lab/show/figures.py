"""The house style: every figure of the lab is drawn here, or by the rules written here.

Figures are made for a printed column and for a screen: a serif face that goes with mathematics, thin axes on
two sides only, a palette that colour-blind readers can tell apart (Okabe and Ito), theory always dashed,
in ink. No `pyplot`: a figure is a value that is drawn, saved and forgotten, without global state or window.
"""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import hsv_to_rgb, to_hex
from matplotlib.figure import Figure

from sparseopt.lab.errors import UserError
from sparseopt.lab.show.colors import COLORS, INK
from sparseopt.lab.system.files import make_folder, write_bytes

THEORY: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 2.5)), "linewidth": 1.2, "zorder": 1.5}
"""How a prediction is drawn: `axis.plot(x, y, label="theory", **THEORY)`."""

METADATA: dict[str, Any] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}
"""The files that a figure can be written as, and what keeps the time of writing out of them."""
OTHERS = {".jpg", ".jpeg", ".webp", ".gif", ".tif", ".tiff", ".bmp", ".eps", ".ps"}
"""Suffixes of pictures that are not written: a dot in the name of a run is no suffix."""
BOTH = (".png", ".pdf")
"""For the screen and for print: what it is written as if nobody says."""

CHARACTERS_PER_INCH = 14
ROOM_FOR_LEGEND = 0.4  # inches, that a figure has below its axes anyway

_STYLE: Any = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titlepad": 7,
    "axes.labelsize": 10.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=COLORS),
    "grid.color": "#8c959f",
    "grid.alpha": 0.22,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "legend.handlelength": 1.9,
    "figure.dpi": 110,
    "savefig.dpi": 220,
    "pdf.fonttype": 42,  # TrueType: text stays text in the PDF, as journals ask
    "svg.fonttype": "path",
}


@contextmanager
def style() -> Iterator[None]:
    """The house style, for everything drawn inside the block."""
    with matplotlib.rc_context(_STYLE):
        yield


def panels(
    columns: int, rows: int = 1, *, width: float = 3.6, height: float = 2.9, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A new figure of rows x columns axes, each `width` x `height` inches, and the axes in reading order.

    Call it, and draw, inside `style()`. Further options go to `Figure.subplots` (sharex, sharey, subplot_kw).
    """
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def palette(count: int) -> list[str]:
    """As many colours, no two alike: the house's own as long as they last, then hues evenly around the wheel.

    >>> palette(2), len(set(palette(50)))
    (['#0072b2', '#d55e00'], 50)
    """
    if count <= len(COLORS):
        return list(COLORS[:count])
    hues = np.arange(count) / count
    depth = np.where(np.arange(count) % 2, 0.9, 0.62)  # neighbours on the wheel differ in lightness as well
    colours = hsv_to_rgb(np.stack([hues, np.full(count, 0.85), depth], axis=1))
    return [to_hex(colour) for colour in colours]


def band(
    axis: Axes,
    x: Sequence[float],
    centre: Any,
    spread: Any,
    *,
    series: int,
    colours: Sequence[str] = COLORS,
    label: str | None = None,
    **line: Any,
) -> None:
    """A line with its spread around it, in the colour of the given series; further options go to the line."""
    centre, spread = np.asarray(centre), np.asarray(spread)
    color = colours[series % len(colours)]
    axis.fill_between(x, centre - spread, centre + spread, color=color, alpha=0.18, linewidth=0)
    axis.plot(x, centre, color=color, label=label, **line)


def legend_below(figure: Figure, axes: Sequence[Axes], columns: int = 3) -> None:
    """One legend for all axes, below them, in as many columns at the most; what several of them show stands there once."""
    entries = {
        label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    put_legend(figure, list(entries.values()), list(entries), columns)


def put_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int) -> None:
    """A legend below the figure, never cut: fewer columns where it is too wide, wrapped words where one column is, and room
    below for all of its rows."""
    characters = max(16, int(figure.get_figwidth() * CHARACTERS_PER_INCH))
    labels = ["\n".join(textwrap.wrap(label, characters)) or label for label in labels]
    number = max(1, min(columns, len(labels)))
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=number)
    while number > 1 and legend.get_window_extent().width > figure.bbox.width:
        legend.remove()
        number -= 1
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=number)
    needed = legend.get_window_extent().height / figure.dpi
    figure.set_figheight(figure.get_figheight() + max(0.0, needed - ROOM_FOR_LEGEND))


def save(figure: Figure, path: str | Path) -> list[Path]:
    """Write the figure as PNG and PDF, or as what the suffix of `path` says. Same figure, same bytes."""
    path = Path(path)
    make_folder(path.parent)
    chosen = path.suffix.lower() in METADATA
    if not chosen and path.suffix.lower() in OTHERS:
        raise UserError(f"{path}: figures are written as {', '.join(METADATA)}, not as {path.suffix}")
    files = [path] if chosen else [path.with_name(path.name + suffix) for suffix in BOTH]
    with style(), matplotlib.rc_context({"svg.hashsalt": "sparseopt"}):
        for file in files:
            suffix, buffer = file.suffix.lower(), io.BytesIO()
            figure.savefig(buffer, format=suffix[1:], metadata=METADATA[suffix])
            write_bytes(file, buffer.getvalue())
    return files


def svg(figure: Figure, name: str) -> str:
    """The figure as an SVG element for a page: transparent, ink as the page's text, series as variables.

    A page in dark mode redefines `--series-0`, `--series-1`, ... The name keeps the ids of several figures on
    one page apart.
    """
    buffer = io.StringIO()
    with style(), matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    element = buffer.getvalue()
    element = element[element.index("<svg") :].replace(INK, "currentColor")
    for series, color in enumerate(COLORS):
        element = element.replace(color, f"var(--series-{series}, {color})")
    # Width and height in points would fix the size; without them the view box lets the page decide.
    return re.sub(r' (width|height)="[\d.]+pt"', "", element, count=2)
