"""The house style: every figure of the lab is drawn here, or by the rules written here.

Figures are made for a printed column and for a screen: a serif face that goes with mathematics, thin axes on
two sides only, a palette that colour-blind readers can tell apart (Okabe and Ito), theory always dashed,
in ink. No `pyplot`: a figure is a value that is drawn, saved and forgotten, without global state or window.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f6000", "#7a7a7a")
"""Okabe and Ito's palette, in the order in which series are drawn; the last, grey, is for what recedes."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", ".")
"""One marker a colour, so that a black-and-white print can still be read."""

LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
"""Line styles, for series that must be told apart without colour. Long dashes in ink are theory's."""

INK = "#1c1e21"
"""Text, axes and theory."""

THEORY: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 2.5)), "linewidth": 1.2, "zorder": 1.5}
"""How a prediction is drawn: `axis.plot(x, y, label="theory", **THEORY)`."""

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


def band(
    axis: Axes,
    x: Sequence[float],
    centre: Any,
    spread: Any,
    *,
    series: int,
    label: str | None = None,
    **line: Any,
) -> None:
    """A line with its spread around it, in the colour of the given series; further options go to the line."""
    centre, spread = np.asarray(centre), np.asarray(spread)
    color = COLORS[series % len(COLORS)]
    axis.fill_between(x, centre - spread, centre + spread, color=color, alpha=0.18, linewidth=0)
    axis.plot(x, centre, color=color, label=label, **line)


def legend_below(figure: Figure, axes: Sequence[Axes], columns: int = 3) -> None:
    """One legend for all axes, below them, in as many columns at the most; what several of them show stands there once."""
    entries = {
        label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    columns = min(columns, max(1, len(entries)))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)


def save(figure: Figure, path: str | Path) -> list[Path]:
    """Write the figure as PNG and PDF; `path` is the name without a suffix. Same figure, same bytes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(path.name + suffix) for suffix in (".png", ".pdf")]
    with style():
        figure.savefig(files[0], metadata={"Software": None})
        figure.savefig(files[1], metadata={"CreationDate": None})
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
