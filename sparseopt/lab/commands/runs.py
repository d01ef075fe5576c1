"""`sparseopt runs`: a table of runs, finished or not."""

from pathlib import Path

import tyro
from rich import box
from rich.table import Table

from sparseopt.lab.cli.command import run
from sparseopt.lab.runs.catalogue import Run, find_runs, unusual
from sparseopt.lab.show.terminal import wide_console
from sparseopt.lab.show.words import duration

COLUMNS = (
    "run",
    "unusual settings",
    "state",
    "epoch",
    "test accuracy",
    "train loss",
    "sparsity",
    "ITOP",
    "dead",
    "time",
)
STYLES = {"finished": "green", "running": "cyan", "diverged": "red", "stopped": "yellow"}


def main(argv: list[str]) -> int:
    """List what the command line says."""
    return run("sparseopt runs", runs, argv)


def runs(folder: tyro.conf.Positional[Path] = Path("runs")) -> None:
    """List runs: what is unusual about them, state, progress, and the numbers of the last epoch.

    Args:
        folder: Where the runs are; folders below it are searched as well.
    """
    found = find_runs(folder)
    if not found:
        print(f"no runs in {folder}; sparseopt train makes one")
        return
    console = wide_console()
    table = Table(*COLUMNS, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[3:]:
        column.justify = "right"
    for column in table.columns[:2]:
        column.overflow = "fold"
    for each in found:
        table.add_row(*_cells(each, folder))
    console.print(table, highlight=False)


def _cells(each: Run, folder: Path) -> list[str]:
    name = str(each.path.relative_to(folder)) if each.path != folder else each.path.name
    state = f"[{STYLES[each.state]}]{each.state}[/]"
    last = each.last
    if not last:
        return [name, unusual(each), state, f"0/{each.config.epochs}", *["-"] * (len(COLUMNS) - 4)]
    return [
        *(name, unusual(each), state, f"{last['epoch']}/{each.config.epochs}"),
        *(f"{last['test_accuracy']:.2%}", f"{last['train_loss']:.4f}", f"{last['sparsity']:.2%}"),
        *(f"{last['itop_rate']:.1%}", str(last["dead_neurons"]), duration(last["seconds"])),
    ]
