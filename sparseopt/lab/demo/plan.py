"""What the demo runs: the settings of its four acts."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sparseopt.lab.analyses.bn_ratio import TwinSettings
from sparseopt.lab.analyses.fan_in import FanInSettings
from sparseopt.lab.config.controls import CorrectionName
from sparseopt.lab.config.recipes import RECIPES, Config, MethodName
from sparseopt.lab.demo.jobs import AnalysisJob, TrainingJob
from sparseopt.lab.errors import require, require_positive
from sparseopt.lab.training.acceleration import Accelerate

Group = tuple[str, ...]
Series = Iterator[tuple[Group, Config]]
"""What an act shows: trainings, each in its group; those of one group differ in their seed alone."""

MASKS = {"bimodal": "bimodal:50", "ordinary": "random"}
CORRECTIONS: dict[str, CorrectionName] = {"baseline": "none", "SparseOpt": "layer", "shuffled": "shuffled"}
SPARSITIES = (0.9, 0.95, 0.97, 0.98)
METHODS: dict[str, tuple[MethodName, CorrectionName]] = {"SET": ("set", "layer"), "RigL": ("rigl", "none")}


@dataclass(frozen=True)
class DemoSettings:
    """Four acts; networks are trained on the embedded digits."""

    out: Path = Path("demo")
    """Folder for the page, the figures and the runs."""
    seconds: float = 9.0
    """How long act 1 measures speed."""
    seeds: int = 10
    """Seeds of the paired comparison in act 3."""
    table_seeds: int = 3
    """Seeds of each row of the table in act 4."""
    epochs: int = 6
    """Length of every training."""
    hidden: tuple[int, ...] = (512, 512)
    """Hidden layers of the network that is trained."""
    batches: int = 100
    """Batches that act 2 measures gradients on."""
    workers: int = min(2, os.cpu_count() or 1)
    """Processes, one thread each."""

    def __post_init__(self) -> None:
        require_positive(self, "seeds", "table_seeds", "epochs", "batches", "workers")
        require(self.seconds > 0, "seconds", self.seconds, "greater than 0")

    @property
    def config(self) -> Config:
        """The training that all runs of acts 3 and 4 share.

        Gradients are renormalised to norm 1, because RigL without it can collapse at the highest sparsities. There is no
        warm-up: the trainings are short, and the skew is largest at their start.
        """
        return dataclasses.replace(
            RECIPES["digits-mlp"],
            epochs=self.epochs,
            hidden=self.hidden,
            warmup_epochs=0.0,
            max_grad_norm=1.0,
            method="set",
            sparsity=0.95,
        )


def analyses(settings: DemoSettings) -> list[AnalysisJob]:
    """What act 2 measures."""
    return [
        AnalysisJob(2, "bn-ratio", TwinSettings(batches=settings.batches)),
        AnalysisJob(2, "fan-in", FanInSettings(batches=settings.batches, steps=())),
    ]


def trainings(settings: DemoSettings, accelerate: Accelerate) -> list[TrainingJob]:
    """All trainings, in the order of the acts; one that two acts show is done once, for the first of them."""
    jobs: dict[Config, TrainingJob] = {}
    for act, series in SERIES.items():
        for group, config in series(settings):
            folder = settings.out / "runs" / config.run_name
            jobs.setdefault(config, TrainingJob(act, group, config, folder, accelerate))
    return list(jobs.values())


def _training(settings: DemoSettings) -> Series:
    """Seed by seed, so that an early end would still have pairs."""
    for seed in range(settings.seeds):
        for masks, fan_in in MASKS.items():
            for name, correction in CORRECTIONS.items():
                config = dataclasses.replace(settings.config, fan_in=fan_in, correction=correction, seed=seed)
                yield (masks, name), config


def _results(settings: DemoSettings) -> Series:
    for seed in range(settings.table_seeds):
        for ham in (False, True):
            base = dataclasses.replace(settings.config, ham=ham, seed=seed)
            suffix = "with HAM" if ham else "plain"
            yield ("dense", "0", suffix), dataclasses.replace(base, method="dense")
            for name, (method, correction) in METHODS.items():
                for sparsity in SPARSITIES:
                    yield (
                        (name, f"{sparsity:g}", suffix),
                        dataclasses.replace(base, method=method, correction=correction, sparsity=sparsity),
                    )


SERIES: dict[int, Callable[[DemoSettings], Series]] = {3: _training, 4: _results}
"""The acts that train, and what they train."""
