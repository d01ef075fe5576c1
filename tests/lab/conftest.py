"""A run that takes a fraction of a second, and what must be the same whenever it is run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparseopt.lab.config.recipes import RECIPES, Config
from sparseopt.lab.runs.rundir import RunDir


@pytest.fixture(scope="session")
def small() -> Callable[..., Config]:
    """Makes small configurations: 3 epochs of 10 steps, RigL with updates every 4, clipping at 1, but for changes."""
    base = replace(RECIPES["digits-mlp"], epochs=3, batch_size=400, hidden=(16, 12), every=4, sparsity=0.8)

    def changed(**changes: Any) -> Config:
        return replace(base, **{"max_grad_norm": 1.0} | changes)

    return changed


@pytest.fixture(scope="session")
def outcome() -> Callable[[Path], tuple[bytes, list[dict[str, Any]]]]:
    """Reads the final network's bytes from a run's folder, and its metrics but for the time."""

    def read(out: Path) -> tuple[bytes, list[dict[str, Any]]]:
        run = RunDir(out)
        rows = [{name: value for name, value in row.items() if name != "seconds"} for row in run.metrics()]
        return run.model_file.read_bytes(), rows

    return read
