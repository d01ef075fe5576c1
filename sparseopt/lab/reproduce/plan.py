"""What a target would take: its runs, which of them are there already, and the hours to go on this machine."""

from collections.abc import Callable
from dataclasses import dataclass

from sparseopt.lab.analyses.analysis import counted
from sparseopt.lab.place import Place
from sparseopt.lab.recipes import Config, MethodName
from sparseopt.lab.reproduce.estimate import Pace, measure
from sparseopt.lab.reproduce.grid import METHODS
from sparseopt.lab.reproduce.layout import Layout
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes

Kind = tuple[float, MethodName]
"""Sparsity and method: what decides the pace. A correction costs nothing next to the network."""


@dataclass(frozen=True)
class Plan:
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


def plan(outcomes: Outcomes, place: Place, pace: Callable[[Config, Place], Pace] = measure) -> Plan:
    """Measure what is needed to tell the hours."""
    first = {kind(cell): cell for cell in outcomes.cells.values() if cell.epochs_left}
    configs = {of: outcomes.grid.config(cell.row, cell.epochs, 0) for of, cell in first.items()}
    return Plan(outcomes, {of: pace(config, place) for of, config in configs.items()})


def runs_table(plan: Plan) -> Layout:
    """One row a cell: runs, those that are done, those that have begun, hours to go."""
    rows = [
        (
            *cell.row.labels,
            f"{cell.epochs}",
            f"{cell.wanted}",
            f"{len(cell.runs)}",
            f"{len(cell.begun)}",
            f"{plan.seconds(cell) / 3600:.2f}",
        )
        for cell in plan.outcomes.cells.values()
    ]
    labels = ("sparsity", "DST", "training", "epochs")
    return Layout("Runs", labels, ("runs", "done", "begun", "hours to go"), rows)


def pace_table(plan: Plan) -> Layout:
    """What was measured."""
    rows = [
        (
            f"{100 * sparsity:g}%",
            METHODS[method],
            f"{1000 * pace.step:.1f}",
            f"{pace.steps_per_epoch}",
            f"{pace.evaluation:.1f}",
            f"{pace.epoch:.1f}",
        )
        for (sparsity, method), pace in plan.paces.items()
    ]
    values = ("step (ms)", "steps an epoch", "evaluation (s)", "epoch (s)")
    return Layout("Measured here", ("sparsity", "DST"), values, rows)


def summary(plan: Plan, place: Place, workers: int) -> str:
    """The hours in a sentence."""
    cells = plan.outcomes.cells.values()
    runs, done = sum(cell.wanted for cell in cells), sum(len(cell.runs) for cell in cells)
    hours = plan.total / 3600
    threads = "" if place.threads is None else f", {counted(place.threads, 'thread')}"
    shared = (
        f"; {hours / workers:.1f} hours with {workers} workers, if they do not slow each other down"
        if workers > 1
        else ""
    )
    return (
        f"{counted(runs, 'run')}, {done} done, {runs - done} to train: {hours:.1f} hours one after another on this machine "
        f"(--accelerate {place.accelerate}{threads}){shared}."
    )
