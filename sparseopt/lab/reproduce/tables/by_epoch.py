"""Test accuracy on the way: the authors' gap is largest in the first epochs."""

from itertools import product
from statistics import fmean

from sparseopt.lab.reproduce.grid import GridRow
from sparseopt.lab.reproduce.layout import LabelledTable
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes
from sparseopt.lab.reproduce.tables.texts import NOTHING

SHOWN = (1, 2, 3, 5, 10, 20, 50, 100, 200, 300, 500)


def by_epoch_table(outcomes: Outcomes) -> LabelledTable:
    """One column an epoch, of some of them and the last, means over seeds."""
    grid = outcomes.grid
    axes = product(grid.scale.sparsities, grid.methods, grid.scale.epochs, grid.arms)
    cells = [outcomes.cells[GridRow(sparsity, method, arm), epochs] for sparsity, method, epochs, arm in axes]
    cells = [cell for cell in cells if cell.runs]
    longest = max((cell.epochs for cell in cells), default=0)
    shown = sorted({epoch for epoch in SHOWN if epoch < longest} | {cell.epochs for cell in cells})
    rows = []
    for cell in cells:
        sparsity, method, training = cell.row.labels
        rows.append((sparsity, method, f"{cell.epochs}", training, *(_mean(cell, epoch) for epoch in shown)))
    return LabelledTable(
        "Test accuracy by epoch (%)",
        ("sparsity", "DST", "epochs", "training"),
        tuple(f"{epoch}" for epoch in shown),
        rows,
        notes=["After so many epochs, mean over the finished seeds."],
    )


def _mean(cell: Cell, epoch: int) -> str:
    if epoch > cell.epochs:
        return NOTHING
    return f"{fmean(100 * run.rows[epoch - 1]['test_accuracy'] for run in cell.runs.values()):.2f}"
