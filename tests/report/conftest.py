"""Folders of runs that no one had to train, and a browser to look at what becomes of them."""

import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright
from torch import Tensor

from sparseopt.kernels.frozen.file import write
from sparseopt.lab.config.recipes import RECIPES, Config
from sparseopt.lab.runs.row import Row
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.system.files import write_json

QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


class Maker:
    """Makes configurations, and folders of runs with curves that are known by formula."""

    def config(self, **changes: Any) -> Config:
        """A small configuration, but for changes."""
        base = replace(RECIPES["digits-mlp"], epochs=5, hidden=(8, 6), warmup_epochs=0.0, method="set")
        return replace(base, **changes)

    def accuracy(self, config: Config, epoch: int) -> float:
        """Test accuracy after an epoch: higher with sparsity, with the correction and with the seed."""
        level = 0.4 * config.sparsity + (0.05 if config.correction == "layer" else 0) + 0.001 * config.seed
        return (0.4 + level) * (1 - math.exp(-epoch / 2))

    def rows(self, config: Config, epochs: int) -> list[Row]:
        """The metrics of the first epochs."""
        return [self._row(config, epoch) for epoch in range(1, epochs + 1)]

    def _row(self, config: Config, epoch: int) -> Row:
        accuracy = self.accuracy(config, epoch)
        loss = 2.3 - 2 * accuracy
        row = {"epoch": epoch, "step": 31 * epoch, "train_loss": loss, "train_accuracy": accuracy + 0.01}
        row |= {"test_loss": loss + 0.1, "test_accuracy": accuracy, "mean_train_loss": loss + 0.2, "lr": 0.1}
        row |= {"sparsity": config.sparsity, "itop_rate": 0.1 + 0.02 * epoch, "dead_neurons": epoch // 2}
        return row | {"fan_in_spread": 0.3 + 0.01 * epoch, "factor_spread": 0.15, "seconds": 2.0 * epoch}

    def run(self, folder: Path, *, done: int | None = None, torch: str = "2.13.0", **changes: Any) -> Path:
        """The folder of a run: finished, or stopped after so many epochs."""
        run, made = RunDir(folder), self.config(**changes)
        folder.mkdir(parents=True)
        done = made.epochs if done is None else done
        place = {"versions": {"sparseopt": "0.1.0", "torch": torch}, "device": "cpu", "threads": 1}
        write_json(run.config_file, {"config": made.to_json(), "name": made.run_name, **place})
        run.write_metrics(self.rows(made, done))
        if done == made.epochs:
            write_json(run.summary_file, {"epochs": done})
        return folder

    def masks(self, folder: Path, masks: dict[str, Tensor]) -> None:
        """Give a run a final network in which exactly the weights of these masks are active."""
        write({name: mask.float() for name, mask in masks.items()}, masks, RunDir(folder).packed_file)


@pytest.fixture(scope="session")
def make() -> Maker:
    return Maker()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium; the tests that need it are skipped where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next((found for name in names if (found := shutil.which(name))), None)
    if executable is None:
        pytest.skip("needs a Chromium on the PATH, such as Debian's package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=[*QUIET])
        yield browser
        browser.close()
