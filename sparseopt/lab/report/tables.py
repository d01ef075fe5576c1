"""The tables of a report, as values: what stands in a cell, and what it is sorted by."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparseopt.lab.config.differences import differing
from sparseopt.lab.report.study import Study
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.runs.groups import Group, Settings, order
from sparseopt.lab.show.statistics import mean_and_std
from sparseopt.lab.show.words import duration

NOTHING = "-"


@dataclass(frozen=True)
class TableCell:
    """What is shown, and the number it is sorted by; without one, words are sorted as words."""

    text: str
    number: float | None = None


@dataclass(frozen=True)
class ReportTable:
    """A table with a header of each column and of each row, its first cell."""

    columns: list[str]
    rows: list[list[TableCell]]

    @property
    def wordy(self) -> list[bool]:
        """For each column, whether it holds words, which stand flush left, and no numbers."""
        return [all(cell.number is None for cell in column) for column in zip(*self.rows, strict=True)]


@dataclass(frozen=True)
class Measure:
    """A number of a run that tables show: where it comes from, and how it is written."""

    name: str
    """In files for programs."""
    title: str
    of: Callable[[Run], float]
    written: Callable[[float], str]


def _last(name: str) -> Callable[[Run], float]:
    return lambda run: run.last[name]


def _share(value: float) -> str:
    return f"{100 * value:.2f}"


MEASURES = (
    Measure("test_accuracy", "test accuracy (%)", _last("test_accuracy"), _share),
    Measure(
        "best_test_accuracy",
        "best epoch (%)",
        lambda run: max(row["test_accuracy"] for row in run.rows),
        _share,
    ),
    Measure("train_loss", "train loss", _last("train_loss"), "{:.4f}".format),
    Measure("mean_train_loss", "mean train loss", _last("mean_train_loss"), "{:.4f}".format),
    Measure("sparsity", "sparsity (%)", _last("sparsity"), _share),
    Measure("itop_rate", "ITOP (%)", _last("itop_rate"), _share),
    Measure("dead_neurons", "dead neurons", _last("dead_neurons"), "{:.4g}".format),
    Measure("seconds", "time", _last("seconds"), duration),
)
SPREAD = {"test accuracy (%)", "best epoch (%)", "train loss", "mean train loss"}
"""The measures that are shown with their standard deviation over seeds."""


def results(study: Study) -> ReportTable:
    """One row a group: mean and standard deviation over its finished seeds."""
    names = differing([group.settings for group in study.groups])
    columns = [
        *(in_words(name) for name in names or ["configuration"]),
        "seeds",
        *(m.title for m in MEASURES),
    ]
    return ReportTable(columns, [_result(group, names) for group in study.groups])


def _result(group: Group, names: Sequence[str]) -> list[TableCell]:
    head = cells_of(group.settings, names) or [TableCell(group.label)]
    seeds, finished = len(group.runs), group.finished
    count = TableCell(str(seeds) if len(finished) == seeds else f"{len(finished)} of {seeds}", len(finished))
    return [*head, count, *(average(measure, finished) for measure in MEASURES)]


def average(measure: Measure, runs: Sequence[Run]) -> TableCell:
    """The mean over runs, with the standard deviation where it is of interest."""
    if not runs:
        return TableCell(NOTHING)
    mean, std = mean_and_std([measure.of(run) for run in runs])
    shown = measure.written(mean)
    if measure.title in SPREAD and std is not None:
        shown += f" ± {measure.written(std)}"
    return TableCell(shown, mean)


def every_run(study: Study) -> ReportTable:
    """One row a run: how far it is, its latest numbers, and every setting or version in which the runs differ."""
    settings, machines = differing(study.settings), differing(study.environments)
    columns = ["run", "state", "epochs", *(measure.title for measure in MEASURES)]
    rows = [
        [*_progress(study, run), *_latest(run), *cells_of(own, settings), *cells_of(machine, machines)]
        for run, own, machine in zip(study.runs, study.settings, study.environments, strict=True)
    ]
    return ReportTable([*columns, *map(in_words, [*settings, *machines])], rows)


def _progress(study: Study, run: Run) -> list[TableCell]:
    done = len(run.rows)
    return [
        TableCell(study.names[run.path]),
        TableCell(run.state),
        TableCell(f"{done}/{run.config.epochs}", done),
    ]


def _latest(run: Run) -> list[TableCell]:
    if not run.rows:
        return [TableCell(NOTHING)] * len(MEASURES)
    return [TableCell(measure.written(measure.of(run)), measure.of(run)) for measure in MEASURES]


def compared(study: Study) -> ReportTable:
    """The settings in which the runs differ, and how many runs have which value."""
    rows = [
        [TableCell(in_words(name)), TableCell(_counts(study.settings, name))]
        for name in differing(study.settings)
    ]
    return ReportTable(["setting", "values (runs)"], rows)


def _counts(settings: Sequence[Settings], name: str) -> str:
    values = sorted((each[name] for each in settings if name in each), key=order)
    return ", ".join(f"{value} ({count})" for value, count in Counter(map(shown, values)).items())


def shared(study: Study) -> ReportTable:
    """All that the runs have in common: settings, then versions and machine."""
    rows = [
        [TableCell(in_words(name)), TableCell(shown(value))]
        for told in (study.settings, study.environments)
        for name, value in _common(told).items()
    ]
    return ReportTable(["setting", "value"], rows)


def _common(told: Sequence[Settings]) -> Settings:
    varying = differing(told)
    return {name: value for each in told for name, value in each.items() if name not in varying}


def shown(value: Any) -> str:
    """A setting as a person writes it.

    >>> shown(None), shown(True), shown([512, 512]), shown(1e-06), shown("erk")
    ('-', 'yes', '512, 512', '1e-06', 'erk')
    """
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NOTHING if value is None else str(value)


def cells_of(settings: Settings, names: Sequence[str]) -> list[TableCell]:
    """The values of some settings; those that have no say in the run are left empty."""
    return [_cell(settings.get(name)) for name in names]


def _cell(value: Any) -> TableCell:
    number = float(value) if isinstance(value, int | float) else None
    return TableCell(shown(value), number)


def in_words(name: str) -> str:
    return name.replace("_", " ")
