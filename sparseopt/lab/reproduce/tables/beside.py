"""The paper's figures as columns of a table: beside ours where the setting is the same, else kept apart."""

from collections.abc import Mapping
from dataclasses import dataclass

from sparseopt.lab.reproduce.grid import Grid, GridRow
from sparseopt.lab.reproduce.paper import Published, find, nearest


@dataclass(frozen=True)
class PaperColumn:
    """Figures of the paper: beside ours where the setting is the same, else at their own number of epochs."""

    heading: str
    figures: Mapping[GridRow, Published]


def beside(grid: Grid, epochs: int) -> PaperColumn:
    """The paper's figures for these epochs, if the runs are made as the paper's were."""
    figures = {
        row: figure
        for row in (grid.rows if grid.papers else [])
        if (setting := grid.setting(row)) and (figure := find(setting, epochs))
    }
    return PaperColumn(f"paper, {epochs}", figures)


def elsewhere(grid: Grid) -> list[PaperColumn]:
    """The paper's figures closest to columns that it has no figure for, one column a number of epochs."""
    columns: dict[int, dict[GridRow, Published]] = {}
    for epochs in grid.scale.epochs:
        if beside(grid, epochs).figures:
            continue
        for row in grid.rows:
            if (setting := grid.setting(row)) and (figure := nearest(setting, epochs)):
                columns.setdefault(figure.epochs, {})[row] = figure
    return [
        PaperColumn(f"(paper: {epochs} epochs)", figures)
        for epochs, figures in sorted(columns.items())
        if epochs not in grid.scale.epochs or not grid.papers
    ]
