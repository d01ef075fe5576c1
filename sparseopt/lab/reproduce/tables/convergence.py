"""How fast the rows train, against their baselines."""

from collections.abc import Mapping
from itertools import product

from sparseopt.lab.reproduce.convergence import Reached, faster
from sparseopt.lab.reproduce.grid import GridRow
from sparseopt.lab.reproduce.layout import LabelledTable
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes, mean_train_loss
from sparseopt.lab.reproduce.tables.texts import against
from sparseopt.lab.show.statistics import LEVEL


def convergence_table(outcomes: Outcomes, reached: Mapping[Cell, Reached]) -> LabelledTable:
    """Mean training loss over the run, epochs to an accuracy, and both against the baseline."""
    grid = outcomes.grid
    axes = product(grid.scale.sparsities, grid.methods, grid.scale.epochs, grid.arms)
    cells = [outcomes.cells[GridRow(sparsity, method, arm), epochs] for sparsity, method, epochs, arm in axes]
    rows = [_speed(outcomes, cell, reached) for cell in cells if cell.runs]
    return LabelledTable(
        "Convergence",
        ("sparsity", "DST", "epochs", "training"),
        ("mean train loss", "against baseline", "epochs to reach", "against baseline"),
        rows,
        notes=[
            "Mean train loss: over all steps of the run, so lower means faster; its difference is relative and paired by seed, "
            f"with the {LEVEL:.0%} interval. Epochs to reach: the first epoch after which the test accuracy is at least that; "
            "unless it was given, the highest whole percentage that all runs of the same sparsity, DST and length have reached."
        ],
    )


def _speed(outcomes: Outcomes, cell: Cell, reached: Mapping[Cell, Reached]) -> tuple[str, ...]:
    loss = outcomes.relative_difference(cell, mean_train_loss)
    base = outcomes.baseline(cell)
    sooner = faster(reached[cell], reached[base]) if base is not None and base in reached else None
    sparsity, method, training = cell.row.labels
    return (
        *(sparsity, method, f"{cell.epochs}", training),
        f"{cell.mean_and_std(mean_train_loss)[0]:.4f}",
        against(loss, "+z.1%", "lower"),
        when(reached[cell]),
        against(sooner, "+z.1f", "lower"),
    )


def when(reached: Reached) -> str:
    """The mean number of epochs to the level, or how many runs got there if not all did."""
    if reached.mean is None:
        return f"{len(reached.epochs)} of {reached.runs} reached {reached.level:g}%"
    return f"{reached.mean:.1f} to {reached.level:g}%"
