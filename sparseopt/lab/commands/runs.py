"""`sparseopt runs`: a table of runs, finished or not."""

from pathlib import Path

import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparseopt.lab.cli.command import run
from sparseopt.lab.runs.catalogue import Run, find_runs, unusual
from sparseopt.lab.show.terminal import wide_console
from sparseopt.lab.show.words import duration, printable

COLUMNS = (
    "run",
    "unusual settings",
    "state",
    "epoch",
    "test acc",
    "loss",
    "sparsity",
    "ITOP",
    "dead",
    "time",
)
NARROW = ("run", "state", "epoch", "test acc", "loss", "ITOP", "time")
"""What a terminal of 80 columns has room for; unusual settings then stand below the name, and sparsity is part of it."""
ROOM = 130
"""Columns that the whole table needs."""
STYLES = {"finished": "green", "running": "cyan", "diverged": "red", "stopped": "yellow"}


def main(argv: list[str]) -> int:
    """List what the command line says."""
    return run("sparseopt runs", runs, argv)


def runs(folder: tyro.conf.Positional[Path] = Path("runs")) -> None:
    """List runs: what is unusual about them, state, progress, and the numbers of the last epoch: test accuracy, train loss,
    sparsity, ITOP rate, neurons without inputs, time of training. A terminal of less than 130 columns shows the main ones.

    Args:
        folder: Where the runs are; folders below it are searched as well.
    """
    found = find_runs(folder)
    if not found:
        print(f"no runs in {folder}; sparseopt train makes one")
        return
    console = wide_console()
    console.print(_table(found, folder, console), highlight=False)


def _table(found: list[Run], folder: Path, console: Console) -> Table:
    columns = COLUMNS if console.width >= ROOM else NARROW
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        words = column.header in ("run", "unusual settings")
        column.overflow, column.no_wrap = ("fold", False) if words else ("ellipsis", True)
        column.justify = "left" if words or column.header == "state" else "right"
    for each in found:
        cells = _cells(each, folder)
        if columns == NARROW and cells["unusual settings"]:
            cells["run"] += f"\n[dim]{cells['unusual settings']}[/]"
        table.add_row(*(cells[name] for name in columns))
    return table


def _cells(each: Run, folder: Path) -> dict[str, str]:
    last, epochs = each.last, each.config.epochs
    cells = dict.fromkeys(COLUMNS, "-") | {
        "run": escape(
            printable(str(each.path.relative_to(folder)) if each.path != folder else each.path.name)
        ),
        "unusual settings": escape(printable(unusual(each))),
        "state": f"[{STYLES[each.state]}]{each.state}[/]",
        "epoch": f"{last.get('epoch', 0)}/{epochs}",
    }
    if not last:
        return cells
    return cells | {
        "test acc": f"{last['test_accuracy']:.2%}",
        "loss": f"{last['train_loss']:.4f}",
        "sparsity": f"{last['sparsity']:.2%}",
        "ITOP": f"{last['itop_rate']:.1%}",
        "dead": str(last["dead_neurons"]),
        "time": duration(last["seconds"]),
    }
