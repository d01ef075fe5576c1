"""What every analysis consists of: settings, a measurement, a figure of it and a table of it.

A measurement returns plain numbers, lists and dictionaries, exactly what is written as JSON; figure and table are made from that
alone, so they can be made again from the file.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure

from sparseopt.lab.show.table import Table

Item = TypeVar("Item")
Settings = TypeVar("Settings")

Result = dict[str, Any]
Track = Callable[[Sequence[Any], str], Iterable[Any]]
"""Goes through a sequence while showing how far it is: `for seed in track(seeds, "what is done")`."""


def quietly(sequence: Sequence[Item], description: str) -> Iterable[Item]:
    """The `Track` that shows nothing."""
    return sequence


@dataclass(frozen=True)
class Analysis(Generic[Settings]):
    """One analysis: `summary` says in a line what it shows, `settings` is the dataclass of its options."""

    summary: str
    settings: type[Settings]
    measure: Callable[[Settings, Track], Result]
    draw: Callable[[Result], Figure]
    table: Callable[[Result], Table]
