"""The report in a few numbers: what was run, for how long, and what came out best."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sparseopt.lab.report.study import Study
from sparseopt.lab.report.tables import MEASURES, average
from sparseopt.lab.show.words import counted, duration


@dataclass(frozen=True)
class Tile:
    """One number with its name, and a note of what it is about."""

    title: str
    value: str
    note: str = ""


def overview(study: Study) -> list[Tile]:
    """The tiles at the top of the page."""
    runs, seeds = study.runs, [len(group.runs) for group in study.groups]
    states = ", ".join(f"{count} {state}" for state, count in Counter(run.state for run in runs).items())
    epochs = [run.config.epochs for run in runs]
    return [
        Tile("data set", runs[0].config.data, ", ".join(sorted({run.config.model for run in runs}))),
        Tile("runs", str(len(runs)), states),
        Tile(
            "configurations", str(len(seeds)), f"{_span(seeds)} {'seed' if max(seeds) == 1 else 'seeds'} each"
        ),
        Tile("epochs", _span(epochs), f"{counted(len(set(epochs)), 'budget')}"),
        Tile(
            "time of training", duration(sum(run.last.get("seconds", 0) for run in runs)), "all runs together"
        ),
        *_best(study),
    ]


def lead(study: Study) -> str:
    """What the page is about, in a sentence."""
    recipes = " and ".join(sorted({run.config.recipe for run in study.runs}))
    return (
        f"{counted(len(study.runs), 'run')} of {recipes} in {counted(len(study.groups), 'configuration')}. "
        "Every number below comes from the folders of these runs."
    )


def _best(study: Study) -> Iterable[Tile]:
    """Of the configurations with most seeds the one with the highest mean, which a few seeds may have made so."""
    accuracy = MEASURES[0]
    most = max((len(group.finished) for group in study.groups), default=0)
    groups = [group for group in study.groups if len(group.finished) == most > 0]
    means = [(average(accuracy, group.finished), group) for group in groups]
    if means:
        cell, group = max(means, key=lambda entry: entry[0].number or 0.0)
        ties = sum(other.number == cell.number for other, _ in means) - 1
        also = f", and {ties} more" if ties else ""
        note = f"{group.label} ({counted(len(group.finished), 'seed')}){also}"
        yield Tile("highest mean test accuracy", f"{cell.text}%", note)


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
