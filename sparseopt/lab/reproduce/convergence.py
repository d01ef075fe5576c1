"""How fast, not only how far: the mean training loss over a run, and the epochs it takes to an accuracy.

The epochs to an accuracy are compared among runs of the same length, because the schedule of the learning rate
decides most of them. Unless a level is given, it is the highest whole percentage of test accuracy that all runs
of a group have reached.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sparseopt.lab.reproduce.outcomes import Cell, Outcomes
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.show.statistics import Comparison, compare, mean_and_std


@dataclass(frozen=True)
class Reached:
    """When the runs of a cell first had a test accuracy of `level` percent."""

    level: float
    epochs: dict[int, int]
    """By seed, of those that got there."""
    runs: int
    """Finished runs, whether they got there or not."""

    @property
    def mean(self) -> float | None:
        """Over the seeds, if all of them got there: else it would favour those that mostly fail."""
        return mean_and_std(list(self.epochs.values()))[0] if len(self.epochs) == self.runs else None


def reach(outcomes: Outcomes, level: float | None) -> dict[Cell, Reached]:
    """For every cell with a finished run, when its runs reached the level, or the one that their group has in common."""
    cells = [cell for cell in outcomes.cells.values() if cell.runs]
    return {
        cell: _reached(cell, common_level(_group(cell, cells)) if level is None else level) for cell in cells
    }


def faster(cell: Reached, base: Reached) -> Comparison | None:
    """The epochs to the level less those of the baseline, paired by seed; None where a run did not get there."""
    if cell.mean is None or base.mean is None or not (shared := [s for s in cell.epochs if s in base.epochs]):
        return None
    return compare([cell.epochs[seed] for seed in shared], [base.epochs[seed] for seed in shared])


def common_level(runs: Iterable[Run]) -> float:
    """The highest whole percentage that all of these runs have reached."""
    return float(math.floor(100 * min(max(row["test_accuracy"] for row in run.rows) for run in runs)))


def epochs_to(run: Run, level: float) -> int | None:
    """The first epoch after which the test accuracy is at least `level` percent."""
    return next((row["epoch"] for row in run.rows if 100 * row["test_accuracy"] >= level), None)


def _group(cell: Cell, cells: Iterable[Cell]) -> Iterable[Run]:
    """The runs that a cell's are compared with: other arms of the same sparsity, method and length."""
    kind = (cell.row.sparsity, cell.row.method, cell.epochs)
    same = (each for each in cells if (each.row.sparsity, each.row.method, each.epochs) == kind)
    return (run for each in same for run in each.runs.values())


def _reached(cell: Cell, level: float) -> Reached:
    epochs = {seed: epoch for seed, run in cell.runs.items() if (epoch := epochs_to(run, level)) is not None}
    return Reached(level, epochs, len(cell.runs))
