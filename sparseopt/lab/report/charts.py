"""The charts of a report: what each shows, and the numbers that the page draws them from.

The numbers are embedded once, by run; the page's script makes lines, means and spreads of them. Six significant digits are more
than a screen or a hover label shows, and every epoch is there.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparseopt.lab.errors import UserError
from sparseopt.lab.report.masks import LayerFanIn, fan_in_by_layer
from sparseopt.lab.report.study import Study
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.runs.groups import grouped

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chart:
    """A chart of one number a run has at every epoch, or in every layer; shares are shown in percent."""

    name: str
    title: str
    share: bool = False

    @property
    def loss(self) -> bool:
        """May it be drawn on a logarithmic scale?"""
        return self.name.endswith("loss")


LEARNING = (
    Chart("test_accuracy", "Test accuracy (%)", share=True),
    Chart("train_loss", "Train loss"),
    Chart("train_accuracy", "Train accuracy (%)", share=True),
    Chart("test_loss", "Test loss"),
)
TOPOLOGY = (
    Chart("itop_rate", "ITOP rate: weights explored so far (%)", share=True),
    Chart("fan_in_spread", "Spread of fan-in within layers (std / mean)"),
    Chart("factor_spread", "Spread of the skew factors in force (std)"),
    Chart("dead_neurons", "Neurons without inputs"),
)
LAYERS = (
    Chart("layer_fan_in_spread", "Spread of fan-in (std / mean)"),
    Chart("layer_factor_spread", "Spread of skew factors (std)"),
)
BUDGET = Chart("budget", "Test accuracy (%) against epochs", share=True)
QUARTILES = Chart("quantiles", "Fan-in / mean of the layer: range, quartiles and median of the neurons")

Layers = dict[str, LayerFanIn]


def read_layers(study: Study) -> tuple[list[Layers], list[str]]:
    """The layers of every run as its last masks have them, and for each file that cannot be read a sentence."""
    layers: list[Layers] = []
    problems: list[str] = []
    for run in study.runs:
        try:
            layers.append(fan_in_by_layer(run))
        except UserError as error:
            log.warning("%s", error)
            problems.append(str(error))
            layers.append({})
    return layers, problems


def chart_data(study: Study, layers: Sequence[Layers]) -> dict[str, Any]:
    """Everything that the charts show, as JSON has it."""
    names = list(dict.fromkeys(name for each in layers for name in each))
    index = {run.path: number for number, run in enumerate(study.runs)}
    groups = [
        {"label": group.label, "runs": [index[run.path] for run in group.runs]} for group in study.groups
    ]
    budgets = [
        {"label": family.label, "runs": [index[run.path] for run in family.finished]}
        for family in grouped(study.runs, apart_from=("seed", "epochs"))
    ]
    return {
        "groups": groups,
        "families": [family for family in budgets if family["runs"]],
        "layers": names,
        "runs": [
            {"name": study.names[run.path], **_numbers(run), "layers": _by_layer(own, names)}
            for run, own in zip(study.runs, layers, strict=True)
        ],
    }


def _numbers(run: Run) -> dict[str, Any]:
    """What a run's curves consist of; a dense one has no masks to tell of."""
    charts = LEARNING if run.config.method == "dense" else LEARNING + TOPOLOGY
    curves = {chart.name: [_rounded(row[chart.name]) for row in run.rows] for chart in charts}
    return {"seed": run.config.seed, "epochs": run.config.epochs, "curves": curves}


def _by_layer(layers: Layers, names: Sequence[str]) -> dict[str, Any] | None:
    if not layers:
        return None
    told = [layers.get(name) for name in names]
    return {
        "layer_fan_in_spread": [_rounded(layer.spread) if layer else None for layer in told],
        "layer_factor_spread": [_rounded(layer.factor_spread) if layer else None for layer in told],
        "quantiles": [[_rounded(value) for value in layer.quantiles] if layer else None for layer in told],
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
