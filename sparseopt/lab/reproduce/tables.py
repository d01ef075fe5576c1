"""What the tables say: accuracy beside the paper's, differences to the baseline, convergence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from sparseopt.lab.report.study import Study
from sparseopt.lab.report.tables import shared, shown
from sparseopt.lab.reproduce.claims import claim
from sparseopt.lab.reproduce.convergence import Reached, faster
from sparseopt.lab.reproduce.grid import Grid, Row
from sparseopt.lab.reproduce.layout import Best, Layout
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes, accuracy, mean_train_loss
from sparseopt.lab.reproduce.paper import Published, find, nearest
from sparseopt.lab.runs import differing
from sparseopt.lab.statistics import LEVEL, Comparison

LABELS = ("sparsity", "DST", "training")
NOTHING = "-"


@dataclass(frozen=True)
class PaperColumn:
    """Figures of the paper: beside ours where the setting is the same, else at their own number of epochs."""

    heading: str
    figures: Mapping[Row, Published]


def accuracy_table(outcomes: Outcomes) -> Layout:
    """The paper's table: rows sparsity x method x HAM, columns epochs, mean ± std over seeds, the best in bold."""
    grid = outcomes.grid
    columns = [(epochs, beside(grid, epochs)) for epochs in grid.scale.epochs]
    far = elsewhere(grid)
    values = [
        heading
        for epochs, paper in columns
        for heading in (f"{epochs}", *([paper.heading] if paper.figures else []))
    ]
    rows = [
        (
            *row.labels,
            *(text for epochs, paper in columns for text in _cells(outcomes, row, epochs, paper)),
            *(_figure(paper.figures.get(row)) for paper in far),
        )
        for row in outcomes.rows
    ]
    return Layout(
        "Test accuracy (%)",
        LABELS,
        (*values, *(paper.heading for paper in far)),
        rows,
        over="total epochs",
        notes=_accuracy_notes(outcomes, bool(far)),
    )


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
    columns: dict[int, dict[Row, Published]] = {}
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


def _cells(outcomes: Outcomes, row: Row, epochs: int, paper: PaperColumn) -> list[str]:
    cell = outcomes.cells[row, epochs]
    text = seeds_text(cell)
    ours = Best(text) if is_best(outcomes, cell) else text
    return [ours, _figure(paper.figures.get(row))] if paper.figures else [ours]


def is_best(outcomes: Outcomes, cell: Cell) -> bool:
    """Has no other row of the block a higher mean, as far as it is printed?"""
    block = [
        other
        for (row, epochs), other in outcomes.cells.items()
        if (row.sparsity, row.method, epochs) == (cell.row.sparsity, cell.row.method, cell.epochs)
        and other.runs
    ]
    means = [round(other.mean_and_std(accuracy)[0], 2) for other in block]
    return len(block) > 1 and bool(cell.runs) and round(cell.mean_and_std(accuracy)[0], 2) == max(means)


def seeds_text(cell: Cell) -> str:
    """Mean ± std in percent, and how many seeds it is of where some are missing."""
    if not cell.runs:
        return NOTHING
    text = plus_minus(*cell.mean_and_std(accuracy))
    return text if len(cell.runs) == cell.wanted else f"{text} ({len(cell.runs)} of {cell.wanted} seeds)"


def plus_minus(mean: float, std: float | None) -> str:
    """A mean with its spread, where it has one.

    >>> plus_minus(33.104, 0.283), plus_minus(33.1, None)
    ('33.10 ± 0.28', '33.10')
    """
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def _figure(figure: Published | None) -> str:
    return NOTHING if figure is None else plus_minus(figure.mean, figure.std)


def _accuracy_notes(outcomes: Outcomes, far: bool) -> list[str]:
    notes = ["After the last epoch, mean ± standard deviation over seeds; the best of a block in bold."]
    if far:
        notes.append(
            "In brackets: what the paper reports at its own scale, which is not the one of these runs; for orientation only."
        )
    return notes + missing_notes(outcomes)


def missing_notes(outcomes: Outcomes) -> list[str]:
    """What is not in the table, and why."""
    cells = list(outcomes.cells.values())
    wanted, done = sum(cell.wanted for cell in cells), len(outcomes.finished)
    if wanted == done:
        return []
    states = [run.state for cell in cells for run in cell.begun.values()]
    counts = {state: states.count(state) for state in sorted(set(states))}
    counts["not begun"] = wanted - done - len(states)
    told = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    notes = [f"{wanted - done} of {wanted} runs are missing: {told}."]
    if absent := [row for row in outcomes.grid.rows if row not in outcomes.rows]:
        names = list(dict.fromkeys(" ".join(row.labels) for row in absent))
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        notes.append(f"Rows without a finished run are left out: {shown}.")
    return notes


def difference_table(outcomes: Outcomes) -> Layout:
    """Each row against its baseline: percentage points, interval, and what may be claimed."""
    epochs = outcomes.grid.scale.epochs
    rows = []
    for row in outcomes.rows:
        if (base := row.arm.baseline) is None:
            continue
        differences = [outcomes.difference(outcomes.cells[row, total], accuracy) for total in epochs]
        rows.append((*row.labels, base.label, *map(points, differences)))
    return Layout(
        "Difference to the baseline (percentage points of test accuracy)",
        (*LABELS, "against"),
        tuple(map(str, epochs)),
        rows,
        over="total epochs",
        notes=[
            f"Paired by seed: mean, {LEVEL:.0%} interval (Student's t). improves or worsens only where the interval leaves 0 "
            "out. No claim is made of a single seed, or of seeds that agree to the last digit."
        ],
    )


def points(difference: Comparison | None) -> str:
    """A difference with its interval and what it supports."""
    if difference is None:
        return NOTHING
    return f"{_interval(difference, '{:+.2f}')} {claim(difference)}"


def _interval(difference: Comparison, form: str) -> str:
    mean = form.format(difference.mean)
    if math.isinf(difference.low):
        return f"{mean} (1 seed)"
    return f"{mean} ({form.format(difference.low)} to {form.format(difference.high)})"


def convergence_table(outcomes: Outcomes, reached: Mapping[Cell, Reached]) -> Layout:
    """Mean training loss over the run, epochs to an accuracy, and both against the baseline."""
    grid = outcomes.grid
    axes = product(grid.scale.sparsities, grid.target.methods, grid.scale.epochs, grid.arms)
    cells = [outcomes.cells[Row(sparsity, method, arm), epochs] for sparsity, method, epochs, arm in axes]
    rows = [_speed(outcomes, cell, reached) for cell in cells if cell.runs]
    return Layout(
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
        NOTHING if loss is None else f"{_interval(loss, '{:+.1%}')} {claim(loss, better='lower')}",
        when(reached[cell]),
        NOTHING if sooner is None else f"{_interval(sooner, '{:+.1f}')} {claim(sooner, better='lower')}",
    )


def when(reached: Reached) -> str:
    """The mean number of epochs to the level, or how many runs got there if not all did."""
    if reached.mean is None:
        return f"{len(reached.epochs)} of {reached.runs} reached {reached.level:g}%"
    return f"{reached.mean:.1f} to {reached.level:g}%"


def settings_table(outcomes: Outcomes) -> Layout:
    """What all runs share, and of versions and machines also where they differ."""
    study = Study(outcomes.finished)
    same = [(name.text, value.text) for name, value in shared(study).rows]
    other = [
        (
            name.replace("_", " "),
            ", ".join(dict.fromkeys(shown(each.get(name)) for each in study.environments)),
        )
        for name in differing(study.environments)
    ]
    return Layout("Settings", ("setting", "value"), (), [*same, *other])
