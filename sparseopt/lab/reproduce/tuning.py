"""The paper's protocol: every row is tuned first, all rows alike, and compared at its own best.

One seed of every row runs with every candidate; the test accuracy after the last epoch decides, as there is no other set of
images. Where the best of the values tried is the smallest or the largest, the best may lie beyond it: then the next value
further out is tried, in the proportion of the last two, a given number of times. What is tried follows from the runs that are
there and from nothing else, so whoever gives the same command goes on with the same search.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from pathlib import Path

from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.reproduce.grid import Grid, GridRow
from sparseopt.lab.reproduce.outcomes import Found, accuracy, experiment, find
from sparseopt.lab.reproduce.scale import TUNABLE, Candidate
from sparseopt.lab.runs.catalogue import Run

SEED = 0

Tried = dict[Candidate, float | None]
"""Test accuracy of each candidate in percent; None: not finished; minus infinity: diverged."""


@dataclass(frozen=True)
class RowSearch:
    """One row and one number of epochs: what has been tried, and what came of it."""

    row: GridRow
    epochs: int
    tried: Tried

    @property
    def complete(self) -> bool:
        return None not in self.tried.values()

    @property
    def best(self) -> Candidate | None:
        """The candidate of the highest accuracy so far; the first of equals."""
        known = {c: value for c, value in self.tried.items() if value is not None and value > -math.inf}
        return max(known, key=lambda candidate: known[candidate]) if known else None

    @property
    def edges(self) -> list[str]:
        """The settings of which the best value is the smallest or the largest of several tried, in words."""
        best = dict(self.best or ())
        found = []
        for name, value in best.items():
            values = self._values(name)
            if len(values) > 1 and value in (values[0], values[-1]):
                found.append(f"{'smallest' if value == values[0] else 'largest'} {name.replace('_', ' ')}")
        return found

    def further(self) -> Candidate | None:
        """The candidate beyond the edge that the best is at; None inside, with one value alone, and where 0 has no proportion."""
        best = dict(self.best or ())
        for name, value in best.items():
            values = self._values(name)
            if len(values) > 1 and value in (values[0], values[-1]):
                neighbour = values[1] if value == values[0] else values[-2]
                beyond = TUNABLE[name](float(f"{value * value / neighbour:.6g}")) if neighbour else value
                if beyond not in values:
                    return tuple((best | {name: beyond}).items())
        return None

    def _values(self, name: str) -> list[float]:
        return sorted({dict(candidate)[name] for candidate in self.tried})


@dataclass(frozen=True)
class Tuning:
    """All searches of a grid."""

    grid: Grid
    searches: Mapping[tuple[GridRow, int], RowSearch]
    found: Found

    @property
    def runs(self) -> list[Run]:
        """Those of the searches that are there."""
        return [run for config in self.configs() if (run := self.found.get(experiment(config)))]

    @property
    def complete(self) -> bool:
        return all(search.complete for search in self.searches.values())

    def configs(self) -> list[Config]:
        """The runs of all searches, as far as it is known what to try: candidate by candidate, to compare rows early."""
        columns = zip_longest(*(_configs(self.grid, search) for search in self.searches.values()))
        return [config for column in columns for config in column if config is not None]

    @property
    def done(self) -> int:
        return sum(value is not None for search in self.searches.values() for value in search.tried.values())

    @property
    def chosen(self) -> dict[tuple[GridRow, int], Candidate]:
        """The best of every cell whose search has ended: at what was best so far no row is compared with another."""
        made = {}
        for row, epochs in product(self.grid.rows, self.grid.scale.epochs):
            search = self.searches[row, self.grid.scale.tune_epochs or epochs]
            if search.complete and search.best is not None:
                made[row, epochs] = search.best
        return made

    def chosen_for(self, row: GridRow) -> bool:
        """Has the row settings that it can be trained with?"""
        return any(search.best is not None for (of, _), search in self.searches.items() if of == row)

    def tuned_grid(self) -> Grid:
        """The grid with every row at its own best."""
        return replace(self.grid, chosen=self.chosen)


def tuning(grid: Grid, *folders: Path) -> Tuning:
    """What is to be tried, and what has been, by the runs in the folders."""
    found = find(*folders)
    searches = {(row, epochs): _search(grid, row, epochs, found) for row, epochs in _places(grid)}
    return Tuning(grid, searches, found)


def _places(grid: Grid) -> Iterator[tuple[GridRow, int]]:
    epochs = grid.scale.epochs if grid.scale.tune_epochs is None else (grid.scale.tune_epochs,)
    return product(grid.rows, epochs)


def _search(grid: Grid, row: GridRow, epochs: int, found: Found) -> RowSearch:
    search = _looked_up(grid, RowSearch(row, epochs, dict.fromkeys(grid.scale.candidates)), found)
    for _ in range(grid.scale.tune_further):
        beyond = search.further() if search.complete else None
        if beyond is None or not _possible(grid, row, epochs, beyond):
            break
        search = _looked_up(grid, replace(search, tried={**search.tried, beyond: None}), found)
    return search


def _looked_up(grid: Grid, search: RowSearch, found: Found) -> RowSearch:
    tried: Tried = {}
    for candidate, config in zip(search.tried, _configs(grid, search), strict=True):
        run = found.get(experiment(config))
        if run is not None and run.state == "diverged":
            tried[candidate] = -math.inf
        else:
            tried[candidate] = accuracy(run) if run is not None and run.complete else None
    return replace(search, tried=tried)


def _configs(grid: Grid, search: RowSearch) -> list[Config]:
    return [grid.config(search.row, search.epochs, SEED, candidate) for candidate in search.tried]


def _possible(grid: Grid, row: GridRow, epochs: int, candidate: Candidate) -> bool:
    """Is there such a configuration? A drop fraction ends at 1."""
    try:
        grid.config(row, epochs, SEED, candidate)
    except UserError:
        return False
    return True
