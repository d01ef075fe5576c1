"""`sparseopt report`: what a folder of runs shows, as one page."""

from pathlib import Path

import tyro

from sparseopt.lab.cli.command import run
from sparseopt.lab.errors import UserError
from sparseopt.lab.report import write_report
from sparseopt.lab.runs.catalogue import survey


def main(argv: list[str]) -> int:
    """Report on what the command line says."""
    return run("sparseopt report", report, argv)


def report(folder: tyro.conf.Positional[Path] = Path("runs"), out: Path | None = None) -> None:
    """Write one HTML page about all runs in a folder: tables, curves, masks, settings, and what to be wary of.

    Args:
        folder: Where the runs are, finished or not; folders below it are searched as well.
        out: The page; None: report.html in that folder.
    """
    found = survey(folder)
    if not found.runs:
        why = f" that can be read ({len(found.left_out)} left out, see above)" if found.left_out else ""
        raise UserError(f"there is no run in {folder}{why}; name a folder that sparseopt train wrote to")
    path = out or folder / "report.html"
    write_report(found.runs, path, title=f"Runs in {folder.resolve().name}", left_out=found.left_out)
    print(path.resolve())
