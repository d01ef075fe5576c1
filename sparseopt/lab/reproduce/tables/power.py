"""How many seeds would have shown the paper's difference, given the spread seen here."""

from sparseopt.lab.reproduce.corrections import READINGS
from sparseopt.lab.reproduce.grid import METHODS, Arm, Grid, GridRow
from sparseopt.lab.reproduce.layout import LabelledTable
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes, accuracy
from sparseopt.lab.reproduce.paper import find, nearest
from sparseopt.lab.reproduce.power import POWER, detectable, pooled_spread, seeds_needed
from sparseopt.lab.reproduce.tables.texts import NOTHING
from sparseopt.lab.show.statistics import LEVEL

SEEDS = (3, 6, 12)


def power_table(outcomes: Outcomes) -> LabelledTable:
    """One row a sparsity, method and length in which some row has two seeds in pairs."""
    blocks: dict[tuple[float, str, int], list[Cell]] = {}
    for cell in outcomes.cells.values():
        blocks.setdefault((cell.row.sparsity, METHODS[cell.row.method], cell.epochs), []).append(cell)
    rows = []
    for (sparsity, method, epochs), cells in blocks.items():
        differences = [difference for cell in cells if (difference := outcomes.difference(cell, accuracy))]
        if (spread := pooled_spread(differences)) is None:
            continue
        count = sum(len(each.differences) for each in differences if len(each.differences) > 1)
        published = papers_difference(outcomes.grid, cells[0].row, epochs)
        needed = None if published is None else seeds_needed(published[0], spread)
        rows.append(
            (
                *(f"{100 * sparsity:g}%", method, f"{epochs}"),
                f"{spread:.2f} (of {count} differences)",
                NOTHING if published is None else f"{published[0]:+.2f} at {published[1]} epochs",
                NOTHING if needed is None else f"{needed}",
                *(f"{detectable(spread, seeds):.2f}" for seeds in SEEDS),
            )
        )
    return LabelledTable(
        "Power",
        ("sparsity", "DST", "epochs"),
        (
            "spread of a paired difference",
            "the paper's difference",
            "paired seeds to show it",
            *(f"shown by {seeds} seeds" for seeds in SEEDS),
        ),
        rows,
        notes=[
            f"In points of test accuracy. So many paired seeds have a chance of {POWER:.0%} of a {LEVEL:.0%} interval that "
            "leaves 0 out. The spread is of one seed's difference to the baseline, pooled over the rows with two seeds or more "
            "(which share their baseline's runs: it is known less well than by as many differences to runs of their own). The "
            "paper's difference is SparseOpt less baseline without HAM, at its number of epochs that comes closest."
        ],
    )


def papers_difference(grid: Grid, row: GridRow, epochs: int) -> tuple[float, int] | None:
    """SparseOpt less baseline in the paper's table for this sparsity and method, and the epochs that it is of."""
    ours, base = (
        grid.setting(GridRow(row.sparsity, row.method, Arm(name))) for name in (READINGS[0], "none")
    )
    if ours is None or base is None or (figure := nearest(ours, epochs)) is None:
        return None
    beside = find(base, figure.epochs)
    return None if beside is None else (figure.mean - beside.mean, figure.epochs)
