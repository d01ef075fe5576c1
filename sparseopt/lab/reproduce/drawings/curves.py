"""Train and test accuracy by epoch."""

from itertools import product

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparseopt.lab.analyses.bn_ratio import centre_and_spread
from sparseopt.lab.config.recipes import MethodName
from sparseopt.lab.report import Drawing
from sparseopt.lab.reproduce.drawings.drawn import SPREAD, Drawings, arms_drawn, cells_drawn
from sparseopt.lab.reproduce.grid import METHODS
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes
from sparseopt.lab.show.colors import LINES
from sparseopt.lab.show.figures import band, legend_below, panels, style


def curves(outcomes: Outcomes, method: MethodName) -> Drawings:
    """Train and test accuracy by epoch, one figure a number of epochs, one column a sparsity."""
    return {
        f"curves-{method}-{epochs}": Drawing(
            _draw_curves(outcomes, method, epochs),
            f"{METHODS[method]}, {epochs} epochs in all: train accuracy, then test accuracy, by epoch; {SPREAD}.",
        )
        for epochs in outcomes.grid.scale.epochs
        if any(cells_drawn(outcomes, method, epochs))
    }


def _draw_curves(outcomes: Outcomes, method: MethodName, epochs: int) -> Figure:
    cells = list(cells_drawn(outcomes, method, epochs))
    sparsities = list(dict.fromkeys(cell.row.sparsity for cell in cells))
    shape = (2, 1) if len(sparsities) == 1 else (len(sparsities), 2)
    with style():
        figure, axes = panels(*shape, width=3.6, height=2.6, sharex=True)
        for number, (metric, sparsity) in enumerate(product(("train_accuracy", "test_accuracy"), sparsities)):
            for cell in (cell for cell in cells if cell.row.sparsity == sparsity):
                _draw_curve(axes[number], cell, metric, arms_drawn(outcomes).index(cell.row.arm))
            axes[number].set_title(f"Sparsity {sparsity:g}")
            axes[number].xaxis.set_major_locator(MaxNLocator(integer=True))
        for axis in axes[-shape[0] :]:
            axis.set_xlabel("epoch")
        axes[0].set_ylabel("train accuracy (%)")
        axes[len(sparsities)].set_ylabel("test accuracy (%)")
        legend_below(figure, axes)
    return figure


def _draw_curve(axis: Axes, cell: Cell, metric: str, series: int) -> None:
    values = [[100 * row[metric] for row in run.rows] for run in cell.runs.values()]
    marker = "o" if cell.epochs == 1 else None  # a line of one point cannot be seen
    line = LINES[series % len(LINES)]
    mean, spread = centre_and_spread(values)
    epochs = list(range(1, cell.epochs + 1))
    band(
        *(axis, epochs, mean, spread),
        series=series,
        label=cell.row.arm.label,
        linestyle=line,
        marker=marker,
    )
