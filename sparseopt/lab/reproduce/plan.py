"""What a target would take: its runs, which of them are there already, and the hours to go on this machine."""

from collections.abc import Callable
from dataclasses import dataclass

from sparseopt.lab.config.recipes import Config, MethodName
from sparseopt.lab.reproduce.estimate import Pace, measure
from sparseopt.lab.reproduce.grid import METHODS
from sparseopt.lab.reproduce.layout import LabelledTable
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes
from sparseopt.lab.reproduce.tables.texts import LABELS
from sparseopt.lab.reproduce.tuning import Tuning
from sparseopt.lab.show.words import counted, duration
from sparseopt.lab.training.place import Place

Kind = tuple[float, MethodName]
"""Sparsity and method: what decides the pace. A correction costs nothing next to the network."""


@dataclass(frozen=True)
class TimeEstimate:
    """The cells of a target, and the pace of each kind that has runs to go."""

    outcomes: Outcomes
    paces: dict[Kind, Pace]

    def seconds(self, cell: Cell) -> float:
        """To go, one run after another."""
        return cell.epochs_left * self.paces[kind(cell)].epoch if cell.epochs_left else 0.0

    @property
    def total(self) -> float:
        return sum(self.seconds(cell) for cell in self.outcomes.cells.values())


def kind(cell: Cell) -> Kind:
    return cell.row.sparsity, cell.row.method


def plan(outcomes: Outcomes, place: Place, pace: Callable[[Config, Place], Pace] = measure) -> TimeEstimate:
    """Measure what is needed to tell the hours."""
    first = {kind(cell): cell for cell in outcomes.cells.values() if cell.epochs_left}
    configs = {of: outcomes.grid.config(cell.row, cell.epochs, 0) for of, cell in first.items()}
    return TimeEstimate(outcomes, {of: pace(config, place) for of, config in configs.items()})


def runs_table(plan: TimeEstimate) -> LabelledTable:
    """Of every cell, how many runs are done, and of every row the time to go."""
    grid = plan.outcomes.grid
    rows = []
    for row in grid.rows:
        cells = [plan.outcomes.cells[row, epochs] for epochs in grid.scale.epochs]
        left = sum(plan.seconds(cell) for cell in cells)
        rows.append((*row.labels, *map(_progress, cells), duration(left) if left else "0"))
    values = (*(counted(epochs, "epoch") for epochs in grid.scale.epochs), "time to go")
    return LabelledTable("Runs", LABELS, values, rows)


def _progress(cell: Cell) -> str:
    begun = f", {len(cell.begun)} begun" if cell.begun else ""
    return f"{len(cell.runs)} of {cell.wanted} done{begun}"


def pace_table(plan: TimeEstimate) -> LabelledTable:
    """What was measured."""
    rows = [
        (
            f"{100 * sparsity:g}%",
            METHODS[method],
            f"{1000 * pace.step:.1f}",
            f"{pace.steps_per_epoch}",
            duration(pace.evaluation),
            duration(pace.epoch),
        )
        for (sparsity, method), pace in plan.paces.items()
    ]
    values = ("step (ms)", "steps an epoch", "evaluation", "epoch")
    return LabelledTable("Measured here", ("sparsity", "DST"), values, rows)


def summary(plan: TimeEstimate, place: Place, workers: int) -> str:
    """The hours in a sentence."""
    cells = plan.outcomes.cells.values()
    runs, done = sum(cell.wanted for cell in cells), sum(len(cell.runs) for cell in cells)
    threads = "" if place.threads is None else f", {counted(place.threads, 'thread')}"
    shared = (
        f"; {duration(plan.total / workers)} with {workers} workers, if they do not slow each other down"
        if workers > 1
        else ""
    )
    return (
        f"{counted(runs, 'run')}, {done} done, {runs - done} to train: {duration(plan.total)} one after another on this machine "
        f"(--accelerate {place.accelerate}{threads}){shared}."
    )


def tuning_summary(plan: TimeEstimate, tuning: Tuning) -> str:
    """What of the search for each row's best is still to be trained, as far as it is known what to try."""
    left = [
        (search.row, search.epochs)
        for search in tuning.searches.values()
        for value in search.tried.values()
        if value is None
    ]
    paces = {(sparsity, method): pace.epoch for (sparsity, method), pace in plan.paces.items()}
    seconds = sum(epochs * paces.get((row.sparsity, row.method), 0.0) for row, epochs in left)
    return (
        f"Tuning: {counted(len(tuning.configs()), 'run')}, {tuning.done} done, {len(left)} to train: {duration(seconds)}, "
        "further out not counted. The first seed of a row is one of them where the lengths are the same, and is trained once."
    )
