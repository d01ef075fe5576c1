"""The house style: files for paper and screen, the same bytes each time, and figures a page can recolour."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from sparseopt.lab.show.colors import COLORS, INK
from sparseopt.lab.show.figures import THEORY, band, panels, save, style, svg


def _figure() -> Figure:
    with style():
        figure, (left, right) = panels(2)
        band(left, [0, 1, 2], [1, 2, 3], [0.1, 0.1, 0.1], series=1, label="measured")
        right.plot([0, 1], [0, 1], label="theory", **THEORY)
        left.legend()
    return figure


def test_same_figure_gives_same_files(tmp_path: Path) -> None:
    first, again = (save(_figure(), tmp_path / name / "figure") for name in ("a", "b"))
    assert [path.name for path in first] == ["figure.png", "figure.pdf"]
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_a_suffix_chooses_what_is_written(tmp_path: Path) -> None:
    files = [save(_figure(), tmp_path / f"{name}.svg") for name in ("a", "b")]
    assert files == [[tmp_path / "a.svg"], [tmp_path / "b.svg"]]
    first, again = ((tmp_path / f"{name}.svg").read_bytes() for name in ("a", "b"))
    assert b"<svg" in first
    assert first == again


def test_suffix_is_added_to_names_with_dots(tmp_path: Path) -> None:
    assert [path.name for path in save(_figure(), tmp_path / "lr0.1")] == ["lr0.1.png", "lr0.1.pdf"]


def test_page_decides_colours_and_size_of_an_inlined_figure() -> None:
    element = svg(_figure(), "one")
    assert element.startswith("<svg")
    assert INK not in element
    assert "currentColor" in element
    assert f"var(--series-1, {COLORS[1]})" in element
    assert ' width="' not in element[: element.index(">")]


def test_style_does_not_leak() -> None:
    before = matplotlib.rcParams["font.family"], matplotlib.rcParams["axes.spines.top"]
    _figure()
    assert (matplotlib.rcParams["font.family"], matplotlib.rcParams["axes.spines.top"]) == before
