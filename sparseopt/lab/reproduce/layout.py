"""A table that can be printed, written as Markdown or LaTeX, or put on a page: the contents once, the looks four times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from markupsafe import Markup, escape
from rich.markup import escape as rich_escape

from sparseopt.lab.show.table import Table


class Best(str):
    """A cell to be set in bold."""

    __slots__ = ()


@dataclass(frozen=True)
class LabelledTable:
    """Rows that begin with labels, of which the outer ones repeat from row to row, and go on with values."""

    title: str
    labels: tuple[str, ...]
    values: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return self.labels + self.values

    def changes(self) -> list[int]:
        """For each row, the outermost label that differs from the row above, counted from 0; of the first row, 0."""
        depth = len(self.labels)
        changed = [
            next((level for level in range(depth) if above[level] != below[level]), depth)
            for above, below in pairwise(self.rows)
        ]
        return [0, *changed] if self.rows else []

    def without_repeats(self) -> list[tuple[str, ...]]:
        """The rows, labels blank where they and those further out are the same as in the row above."""
        return [("",) * level + row[level:] for level, row in zip(self.changes(), self.rows, strict=True)]


def table(layout: LabelledTable, plain: Callable[[str], str], bold: Callable[[str], str]) -> Table:
    """The layout with every cell written as the medium wants it."""
    rows = [
        tuple(bold(cell) if isinstance(cell, Best) else plain(cell) for cell in row)
        for row in layout.without_repeats()
    ]
    columns, notes = tuple(map(plain, layout.columns)), list(map(plain, layout.notes))
    return Table(columns, rows, notes, labels=len(layout.labels))


def for_terminal(layout: LabelledTable) -> Table:
    """With rich's markup."""
    made = table(layout, rich_escape, lambda cell: f"[bold]{rich_escape(cell)}[/bold]")
    return replace(made, notes=list(layout.notes))  # which are printed as they are


def for_page(layout: LabelledTable) -> Table:
    """With HTML for the bold; the page escapes the rest."""
    return table(layout, str, lambda cell: Markup("<strong>{}</strong>").format(escape(cell)))


def markdown(layout: LabelledTable) -> str:
    """A GitHub table under its title, with its notes."""
    made = table(layout, _markdown_escape, lambda cell: f"**{_markdown_escape(cell)}**")
    ruler = ["---"] * len(layout.labels) + ["---:"] * len(layout.values)
    lines = [_pipes(made.columns), _pipes(ruler), *(_pipes(row) for row in made.rows)]
    parts = [f"## {layout.title}", "\n".join(lines), *made.notes]
    return "\n\n".join(parts) + "\n"


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_escape(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "|*_<>[]`\\" else sign for sign in text)
