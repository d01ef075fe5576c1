"""`sparseopt plot`: the curves of one run or many, as PNG, PDF or SVG."""

from pathlib import Path

import tyro

from sparseopt.lab.cli.command import run
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.catalogue import find_runs
from sparseopt.lab.show import figures
from sparseopt.lab.show.curves import draw_curves


def main(argv: list[str]) -> int:
    """Draw what the command line says."""
    return run("sparseopt plot", plot, argv)


def plot(runs: tyro.conf.Positional[tuple[Path, ...]], out: Path | None = None) -> None:
    """Draw accuracy, loss, ITOP rate, spread of fan-in and factors, and sparsity by epoch. Runs that differ in their seed alone
    become one line, their mean, in a band of their standard deviation.

    Args:
        runs: Folders of runs, or folders that hold runs, drawn into one picture; a run may be in progress.
        out: Name of the picture: NAME.png, NAME.pdf or NAME.svg, without a suffix the first two; None: curves in the run's
            folder, or here for several runs, and for an archived one.
    """
    if not runs:
        raise UserError("name one or more folders of runs, such as runs")
    read = {each.path.resolve(): each for folder in runs for each in find_runs(folder)}
    if not read:
        raise UserError(f"there is no run in {', '.join(map(str, runs))}; sparseopt train makes one")
    drawn = [each for each in read.values() if each.rows]
    if not drawn:
        raise UserError("none of these runs has completed an epoch yet; wait, and try again")
    own = len(drawn) == 1 and not drawn[0].archived
    path = out or (drawn[0].path / "curves" if own else Path("curves"))
    for file in figures.save(draw_curves(drawn), path):
        print(file)
