"""A target on the embedded digits, and runs made of numbers, without training."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sparseopt.lab.config.recipes import RECIPES, Config
from sparseopt.lab.reproduce.grid import Arm, Grid, GridRow
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes
from sparseopt.lab.reproduce.scale import Scale
from sparseopt.lab.reproduce.targets import Target
from sparseopt.lab.runs.catalogue import Run

Measured = dict[Arm, Sequence[float]]
"""Test accuracies in percent, one a seed."""


@pytest.fixture(scope="session")
def digits() -> Target:
    """A target that trains in a second: 10 steps an epoch."""
    recipe = replace(RECIPES["digits-mlp"], batch_size=400, hidden=(16, 12), every=4, warmup_epochs=1.0)
    return Target("table-digits", "Digits, MLP, SET", recipe, ("set",), (4,), (0.8,))


def finished(config: Config, percent: float, loss: float = 1.0) -> Run:
    """A run that gained its accuracy in equal steps."""
    rows: list[dict[str, Any]] = [
        {
            "epoch": epoch,
            "test_accuracy": percent / 100 * epoch / config.epochs,
            "train_accuracy": percent / 100 * epoch / config.epochs,
            "mean_train_loss": loss,
            "seconds": 36.0 * epoch,
        }
        for epoch in range(1, config.epochs + 1)
    ]
    return Run(Path("runs") / config.run_name, config, rows, "finished")


@pytest.fixture(scope="session")
def outcomes_of() -> Callable[..., Outcomes]:
    """Outcomes with these accuracies, the same for every sparsity and number of epochs."""

    def make(grid: Grid, measured: Measured, losses: Measured | None = None) -> Outcomes:
        cells = {}
        for row, epochs in product(grid.rows, grid.scale.epochs):
            accuracies = measured.get(row.arm, ())
            runs = {
                seed: finished(grid.config(row, epochs, seed), percent, _loss(losses, row, seed))
                for seed, percent in enumerate(accuracies)
            }
            cells[row, epochs] = Cell(row, epochs, grid.scale.seeds, runs, {})
        return Outcomes(grid, cells)

    return make


def _loss(losses: Measured | None, row: GridRow, seed: int) -> float:
    return 1.0 if losses is None else losses[row.arm][seed]


@pytest.fixture(scope="session")
def at_scale() -> Callable[..., Grid]:
    """A target at the paper's scale, but for changes."""

    def make(target: Target, **changes: Any) -> Grid:
        return Grid(target, replace(Scale.of(target), **changes))

    return make
