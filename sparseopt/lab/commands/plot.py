"""`sparseopt plot`: the curves of one run or several, as PNG and PDF."""

from pathlib import Path

import tyro

from sparseopt.lab.cli.command import run
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.show import figures
from sparseopt.lab.show.curves import draw_curves


def main(argv: list[str]) -> int:
    """Draw what the command line says."""
    return run("sparseopt plot", plot, argv)


def plot(runs: tyro.conf.Positional[tuple[Path, ...]], out: Path | None = None) -> None:
    """Draw accuracy, loss, ITOP rate, spread of fan-in and factors, and sparsity by epoch.

    Args:
        runs: Folders of the runs to draw into one picture; a run may be in progress.
        out: Name of the picture, without a suffix; None: curves in the run's folder, or here for several runs.
    """
    if not runs:
        raise UserError("name one or more folders of runs, such as runs/*")
    read = [Run.read(path) for path in runs]
    drawn = [each for each in read if each.rows]
    if not drawn:
        raise UserError("none of these runs has completed an epoch yet; wait, and try again")
    path = out or (drawn[0].path / "curves" if len(drawn) == 1 else Path("curves"))
    for file in figures.save(draw_curves(drawn), path):
        print(file)
