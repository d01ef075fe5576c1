"""A table as a value, to be printed in a terminal or put on a page."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """The key numbers of a measurement, and the sentences they support."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)
    labels: int = 1
    """How many of the columns, from the left, name what the row is about."""
