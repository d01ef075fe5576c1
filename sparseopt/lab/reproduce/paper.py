"""The paper's own figures: test accuracy in percent, mean and standard deviation over seeds, of every cell of its tables."""

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

PAPER = "SparseOpt: Addressing Normalization-induced Gradient Skew in Sparse Training (ICML 2026)"


@dataclass(frozen=True)
class Setting:
    """What the paper's tables vary, but for the epochs."""

    data: str
    method: str
    renormalised: bool
    sparsity: float
    corrected: bool
    """SparseOpt, not the baseline."""
    ham: bool


@dataclass(frozen=True)
class Published:
    """One figure of the paper; its ImageNet tables give no standard deviation."""

    epochs: int
    mean: float
    std: float | None


@functools.cache
def published() -> Mapping[Setting, Mapping[int, Published]]:
    """All figures, by setting and by epochs."""
    figures: dict[Setting, dict[int, Published]] = {}
    with files("sparseopt.lab.reproduce").joinpath("paper.csv").open() as file:
        for row in csv.DictReader(file):
            setting = Setting(
                row["dataset"],
                row["dst"],
                row["grad_renorm"] == "1",
                float(row["sparsity"]),
                row["method"] == "sparseopt",
                row["ham"] == "1",
            )
            std = float(row["top1_std"]) if row["top1_std"] else None
            figure = Published(int(row["epochs"]), float(row["top1_mean"]), std)
            figures.setdefault(setting, {})[figure.epochs] = figure
    return figures


def find(setting: Setting, epochs: int) -> Published | None:
    """The paper's figure for exactly this."""
    return published().get(setting, {}).get(epochs)


def nearest(setting: Setting, epochs: int) -> Published | None:
    """The paper's figure of this setting for the number of epochs that comes closest."""
    figures = published().get(setting, {}).values()
    return min(figures, key=lambda figure: abs(figure.epochs - epochs), default=None)


ITOP_EPOCHS = 270
ITOP_SOURCE = (
    "The authors' rates are read off their figure of ITOP rates (ImageNet, ResNet-50, RigL, 270 epochs), to within a point; the "
    "paper prints no numbers of it."
)

_ITOP: Mapping[tuple[str | None, float], float] = {
    (None, 0.9): 74.0,
    (None, 0.95): 54.0,
    (None, 0.97): 40.0,
    ("original", 0.9): 75.0,
    ("original", 0.95): 56.0,
    ("original", 0.97): 43.0,
    ("corrected", 0.9): 61.0,
    ("corrected", 0.95): 40.0,
    ("corrected", 0.97): 27.0,
}
"""Percent, by the gradients that SparseOpt grows by (None: the baseline) and by sparsity."""


def published_itop(data: str, method: str, sparsity: float, grown_by: str | None) -> float | None:
    """The authors' ITOP rate in percent after 270 epochs, where their figure shows one."""
    return _ITOP.get((grown_by, sparsity)) if (data, method) == ("imagenet", "rigl") else None
