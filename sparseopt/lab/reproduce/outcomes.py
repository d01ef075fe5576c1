"""What the runs of a grid came to: cell by cell, seed by seed.

A run belongs to a cell by its configuration, whatever its folder is called: runs trained one by one count as well.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from sparseopt.lab.config.recipes import Config
from sparseopt.lab.reproduce.grid import Arm, Grid, GridRow
from sparseopt.lab.runs.catalogue import Run, find_runs
from sparseopt.lab.show.statistics import Comparison, compare, compare_relative, mean_and_std

log = logging.getLogger(__name__)

Metric = Callable[[Run], float]
Found = Mapping[Hashable, Run]


def accuracy(run: Run) -> float:
    """Test accuracy after the last epoch, in percent."""
    return 100 * run.last["test_accuracy"]


def mean_train_loss(run: Run) -> float:
    """Training loss, averaged over all steps of the run."""
    return run.last["mean_train_loss"]


@dataclass(frozen=True, eq=False)
class Cell:
    """The runs of one row and one number of epochs. There is one of each: cells are told apart by identity."""

    row: GridRow
    epochs: int
    wanted: int
    """Seeds asked for."""
    runs: Mapping[int, Run]
    """The finished ones, by seed."""
    begun: Mapping[int, Run]
    """Those that are not finished, by seed."""

    @property
    def epochs_left(self) -> int:
        """Epochs that are still to be trained, over all seeds."""
        begun = sum(run.last.get("epoch", 0) for run in self.begun.values())
        return self.epochs * (self.wanted - len(self.runs)) - begun

    def mean_and_std(self, metric: Metric) -> tuple[float, float | None]:
        """Over the finished seeds, of which there must be one."""
        return mean_and_std([metric(run) for run in self.runs.values()])


@dataclass(frozen=True)
class Outcomes:
    """All cells of a grid."""

    grid: Grid
    cells: Mapping[tuple[GridRow, int], Cell]

    @property
    def finished(self) -> list[Run]:
        return [run for cell in self.cells.values() for run in cell.runs.values()]

    @property
    def found(self) -> list[Run]:
        """All runs that are there, also those that diverged or are not finished: a page warns of them."""
        return [run for cell in self.cells.values() for run in (*cell.runs.values(), *cell.begun.values())]

    @property
    def rows(self) -> list[GridRow]:
        """The rows that have a finished run."""
        return [row for row in self.grid.rows if any(self.cells[row, e].runs for e in self.grid.scale.epochs)]

    def baseline(self, cell: Cell) -> Cell | None:
        """The cell that this one is compared with."""
        arm = cell.row.arm.baseline
        return None if arm is None else self.beside(cell, arm)

    def beside(self, cell: Cell, arm: Arm) -> Cell | None:
        """The cell of another arm, all else being the same."""
        return self.cells.get((GridRow(cell.row.sparsity, cell.row.method, arm), cell.epochs))

    def difference(self, cell: Cell, metric: Metric) -> Comparison | None:
        """To the baseline, paired by seed; None without a seed that both have finished."""
        return paired(cell, self.baseline(cell), metric, compare)

    def relative_difference(self, cell: Cell, metric: Metric) -> Comparison | None:
        """To the baseline, as a share of it."""
        return paired(cell, self.baseline(cell), metric, compare_relative)


def paired(
    cell: Cell, base: Cell | None, metric: Metric, comparing: Callable[[list[float], list[float]], Comparison]
) -> Comparison | None:
    shared = [] if base is None else [seed for seed in cell.runs if seed in base.runs]
    if base is None or not shared:
        return None
    return comparing(
        [metric(cell.runs[seed]) for seed in shared], [metric(base.runs[seed]) for seed in shared]
    )


def collect(grid: Grid, *folders: Path) -> Outcomes:
    """Look for the runs of a grid in folders, which need not exist. A row that is to be tuned first has none before."""
    found = find(*folders)
    cells = {}
    for row, epochs in product(grid.rows, grid.scale.epochs):
        ready = not grid.scale.tune or (row, epochs) in grid.chosen
        runs = {
            seed: run
            for seed in range(grid.scale.seeds if ready else 0)
            if (run := found.get(experiment(grid.config(row, epochs, seed))))
        }
        done = {seed: run for seed, run in runs.items() if run.complete}
        begun = {seed: run for seed, run in runs.items() if seed not in done}
        cells[row, epochs] = Cell(row, epochs, grid.scale.seeds, done, begun)
    return Outcomes(grid, cells)


def find(*folders: Path) -> Found:
    """The runs in folders by what they train; none where one does not exist."""
    return by_experiment(run for folder in folders if folder.is_dir() for run in find_runs(folder))


def by_experiment(runs: Iterable[Run]) -> dict[Hashable, Run]:
    """The runs by what they train; of several of the same, the first that is finished."""
    found: dict[Hashable, Run] = {}
    for run in runs:
        key = experiment(run.config)
        known = found.setdefault(key, run)
        if not known.complete and run.complete:
            found[key] = run
        elif known.complete and run.complete and known.last != run.last:
            log.warning(
                "%s and %s train the same and came to different results: the first counts",
                known.path,
                run.path,
            )
    return found


def experiment(config: Config) -> Hashable:
    """The same for two configurations if and only if they train the same."""
    return frozenset(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in config.in_force().items()
    )
