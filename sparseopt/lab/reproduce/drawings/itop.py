"""How much of the network was ever active, by epoch."""

from sparseopt.lab.analyses import itop
from sparseopt.lab.config.recipes import MethodName
from sparseopt.lab.report import Drawing
from sparseopt.lab.reproduce.drawings.drawn import Drawings, cells_drawn
from sparseopt.lab.reproduce.grid import METHODS
from sparseopt.lab.reproduce.outcomes import Outcomes


def itop_rates(outcomes: Outcomes, method: MethodName) -> Drawings:
    """ITOP rate by epoch, one figure a number of epochs."""
    made: Drawings = {}
    for epochs in outcomes.grid.scale.epochs:
        runs = [run for cell in cells_drawn(outcomes, method, epochs) for run in cell.runs.values()]
        if runs:
            figure = itop.draw(itop.compared(runs))
            caption = (
                f"{METHODS[method]}, {epochs} epochs in all: share of the weights that were active at some time. "
                "The grey line is the density, where a static mask stays."
            )
            made[f"itop-{method}-{epochs}"] = Drawing(figure, caption)
    return made
