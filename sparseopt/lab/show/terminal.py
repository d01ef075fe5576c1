"""The terminal that tables are printed to."""

import os
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from sparseopt.lab.show.table import Table

WIDE = 200  # columns, where there is no terminal to fit into
BETWEEN = 3  # columns between two cells
LONG = 24  # characters of a cell that may be broken into lines


class Terminal(Console):
    """A console that a closed pipe ends as it ends other programs, and not silently."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Unheard(Console):
    """A console that a closed pipe makes silent: the work goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def wide_console() -> Console:
    """The terminal, or, where there is none to fit into, wide enough for the tables."""
    console = Terminal()
    if not console.is_terminal:
        console.width = WIDE
    return console


def print_table(console: Console, table: Table) -> None:
    """Print a table and its notes: labels flush left, numbers flush right.

    What a narrow terminal has no room for gets headings of several lines, and, where that is not enough, goes into further
    tables below, with the labels again. Nothing is cut.
    """
    cells = list(zip(table.columns, *table.rows, strict=True))
    whole = sum(max(map(len, column)) + BETWEEN for column in cells) <= console.width
    for numbers in [range(len(cells))] if whole else _parts(cells, table.labels, console.width):
        shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for number in numbers:
            heading, *values = cells[number]
            label = number < table.labels
            fixed = not label and max(map(len, values), default=0) <= LONG
            if fixed and not whole:
                heading = _stacked(heading, _narrowest(cells[number]))
            shown.add_column(heading, justify="left" if label else "right", no_wrap=fixed)
        for row in table.rows:
            shown.add_row(*(row[number] for number in numbers))
        console.print(shown)
    for note in table.notes:
        console.print(note, highlight=False, markup=False)


def _parts(cells: Sequence[Sequence[str]], labels: int, width: int) -> list[list[int]]:
    """The columns of each table, as many as fit beside the labels."""
    room = width - sum(_narrowest(column) + BETWEEN for column in cells[:labels])
    parts: list[list[int]] = []
    left = 0
    for number in range(labels, len(cells)):
        needed = _narrowest(cells[number]) + BETWEEN
        if not parts or needed > left:
            parts.append(list(range(labels)))
            left = room
        parts[-1].append(number)
        left -= needed
    return parts


def _narrowest(column: Sequence[str]) -> int:
    """Characters that a column needs: whole words of its heading, and its values, of which long ones may be broken."""
    heading, *values = column
    words = max((len(word) for text in column for word in text.split()), default=0)
    longest = max((len(value) for value in values), default=0)
    return max(words, min(longest, LONG), *(len(word) for word in heading.split()))


def _stacked(heading: str, width: int) -> str:
    """A heading in lines of this width.

    >>> _stacked("norm slope corrected", 9)
    'norm\\nslope\\ncorrected'
    """
    lines: list[str] = []
    for word in heading.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)
