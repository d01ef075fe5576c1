"""The terminal that tables are printed to."""

from rich.console import Console

WIDE = 200  # columns, where there is no terminal to fit into


def wide_console() -> Console:
    """The terminal, or, where there is none to fit into, wide enough for the tables."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDE
    return console
