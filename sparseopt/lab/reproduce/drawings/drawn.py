"""What all figures of a target have in common."""

from collections.abc import Iterator

from sparseopt.lab.config.recipes import MethodName
from sparseopt.lab.report import Drawing
from sparseopt.lab.reproduce.grid import Arm
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes

Drawings = dict[str, Drawing]
"""Figures by the name of their files."""

SPREAD = "bands and bars are one standard deviation over seeds"


def arms_drawn(outcomes: Outcomes) -> list[Arm]:
    """The arms that are drawn, in the order of the rows: their number decides their looks."""
    return list(dict.fromkeys(row.arm for row in outcomes.rows))


def cells_drawn(outcomes: Outcomes, method: MethodName, epochs: int) -> Iterator[Cell]:
    """The cells of a method and a number of epochs that have a finished run."""
    for cell in outcomes.cells.values():
        if cell.runs and cell.row.method == method and cell.epochs == epochs:
            yield cell
