"""What the demo computes, in pieces that worker processes can take: the kernels' compilation, an analysis, or one training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sparseopt as so
from sparseopt.lab.analyses import ANALYSES
from sparseopt.lab.analyses.analysis import Result, quietly
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.demo.keep import keep
from sparseopt.lab.runs.row import Row
from sparseopt.lab.speed.measure import unavailable
from sparseopt.lab.training.acceleration import Accelerate
from sparseopt.lab.training.train import train
from sparseopt.lab.training.trainer import Observer, Trainer


@dataclass(frozen=True)
class KernelsJob:
    """Compiles the sparse kernels where nobody has, so that all other processes find them."""

    act: int = 1

    def __call__(self) -> str | None:
        return unavailable()

    def __str__(self) -> str:
        return "sparse kernels compiled"


@dataclass(frozen=True)
class AnalysisJob:
    """One of the analyses, by name."""

    act: int
    name: str
    settings: Any

    def __call__(self) -> Result:
        return ANALYSES[self.name].measure(self.settings, quietly)

    def __str__(self) -> str:
        return f"{self.name} with {self.settings.seeds} seeds"


@dataclass(frozen=True)
class TrainingResult:
    """What is kept of a training: the loss of every step, the final numbers, and how uneven the first masks were."""

    losses: list[float]
    result: dict[str, Any]
    first_spread: float

    @property
    def mean_loss(self) -> float:
        """Mean training loss over all steps: the area under the curve."""
        return self.result["mean_train_loss"]


@dataclass(frozen=True)
class TrainingJob:
    """One training, kept as a run; `act` is the first that shows it, in the series `group`."""

    act: int
    group: tuple[str, ...]
    config: Config
    folder: Path
    accelerate: Accelerate = "on"

    def __call__(self) -> TrainingResult:
        recorder = _Recorder()
        summary = train(self.config, observers=[recorder], accelerate=self.accelerate)
        keep(summary, self.folder, self.accelerate)
        return TrainingResult(recorder.losses, summary.result, recorder.first_spread)

    def __str__(self) -> str:
        return f"{', '.join(self.group)}, seed {self.config.seed}"


class _Recorder(Observer):
    """Keeps the loss of every step, and the spread of the skew factors that the first masks have."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.first_spread = 0.0

    def started(self, trainer: Trainer) -> None:
        topology = trainer.experiment.topology
        if topology is not None:
            factors = so.skew_factors(topology, "layer").values()
            self.first_spread = float(torch.stack([each.std(correction=0) for each in factors]).max())

    def epoch_ended(self, trainer: Trainer, row: Row, losses: Tensor) -> None:
        self.losses += losses.tolist()
