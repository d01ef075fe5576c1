"""ITOP rates after the last epoch, beside those of the authors' figure."""

from sparseopt.lab.reproduce.grid import Grid, GridRow
from sparseopt.lab.reproduce.layout import LabelledTable
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes
from sparseopt.lab.reproduce.paper import ITOP_EPOCHS, ITOP_SOURCE, published_itop
from sparseopt.lab.reproduce.tables.texts import LABELS, NOTHING, plus_minus
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.show.words import counted


def itop_table(outcomes: Outcomes) -> LabelledTable:
    """Share of the weights that were active at some time, in percent."""
    grid = outcomes.grid
    authors = {row: rate for row in grid.rows if (rate := authors_rate(grid, row)) is not None}
    heading = [f"authors, {ITOP_EPOCHS}"] if authors else []
    rows = [
        (
            *row.labels,
            *(rate_text(outcomes.cells[row, epochs]) for epochs in grid.scale.epochs),
            *([f"{authors[row]:.0f}" if row in authors else NOTHING] if authors else []),
        )
        for row in outcomes.rows
    ]
    notes = [
        "Share of the sparsifiable weights that were active at some time: mean ± standard deviation over seeds."
    ]
    return LabelledTable(
        "ITOP rate after the last epoch (%)",
        LABELS,
        (*(counted(epochs, "epoch") for epochs in grid.scale.epochs), *heading),
        rows,
        notes=[*notes, *([ITOP_SOURCE] if authors else [])],
    )


def authors_rate(grid: Grid, row: GridRow) -> float | None:
    """What the authors' figure shows for a row: baseline, or SparseOpt by the gradients that it grows by."""
    arm = row.arm
    if arm.ham or arm.decay or arm.lr_factor != 1 or arm.correction not in ("none", "layer"):
        return None
    grown = None if arm.correction == "none" else arm.grow_from
    return published_itop(grid.target.recipe.data, row.method, row.sparsity, grown)


def rate_text(cell: Cell) -> str:
    """Mean ± standard deviation over the finished seeds, in percent."""
    return plus_minus(*cell.mean_and_std(itop_rate)) if cell.runs else NOTHING


def itop_rate(run: Run) -> float:
    """After the last epoch, in percent."""
    return 100 * run.last["itop_rate"]
