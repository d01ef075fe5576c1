"""The terminal that tables are printed to."""

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from sparseopt.lab.show.table import Table

WIDE = 200  # columns, where there is no terminal to fit into


def wide_console() -> Console:
    """The terminal, or, where there is none to fit into, wide enough for the tables."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDE
    return console


def print_table(console: Console, table: Table) -> None:
    """Print a table and its notes: labels flush left, numbers flush right."""
    shown = RichTable(*table.columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in shown.columns[table.labels :]:
        column.justify = "right"
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
    for note in table.notes:
        console.print(note, highlight=False)
