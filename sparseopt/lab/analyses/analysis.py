"""What every analysis consists of: settings, a measurement, a figure of it and a table of it.

A measurement returns plain numbers, lists and dictionaries, exactly what is written as JSON; figure and table are made from that
alone, so they can be made again from the file.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure

from sparseopt.lab.errors import UserError

Item = TypeVar("Item")
Settings = TypeVar("Settings")

Result = dict[str, Any]
Track = Callable[[Sequence[Any], str], Iterable[Any]]
"""Goes through a sequence while showing how far it is: `for seed in track(seeds, "what is done")`."""


def quietly(sequence: Sequence[Item], description: str) -> Iterable[Item]:
    """The `Track` that shows nothing."""
    return sequence


def require(holds: bool, option: str, value: object, expected: str) -> None:
    """Refuse a setting that cannot be, by the name it has on the command line.

    >>> require(False, "batch_size", 0, "at least 1")
    Traceback (most recent call last):
    sparseopt.lab.commands.cli.UserError: --batch-size must be at least 1, got 0
    """
    if not holds:
        raise UserError(f"--{option.replace('_', '-')} must be {expected}, got {value}")


def require_positive(settings: object, *options: str) -> None:
    """Refuse counts below 1."""
    for option in options:
        value = getattr(settings, option)
        require(value >= 1, option, value, "at least 1")


def counted(number: int, noun: str) -> str:
    """A number with its noun, for sentences made from results.

    >>> counted(1, "seed"), counted(5, "seed")
    ('1 seed', '5 seeds')
    """
    return f"{number} {noun}" + ("" if number == 1 else "s")


@dataclass(frozen=True)
class Table:
    """The key numbers of a measurement, and the sentences they support."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)
    labels: int = 1
    """How many of the columns, from the left, name what the row is about."""


@dataclass(frozen=True)
class Analysis(Generic[Settings]):
    """One analysis: `summary` says in a line what it shows, `settings` is the dataclass of its options."""

    summary: str
    settings: type[Settings]
    measure: Callable[[Settings, Track], Result]
    draw: Callable[[Result], Figure]
    table: Callable[[Result], Table]
