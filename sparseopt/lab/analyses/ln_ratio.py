"""Other norms: LayerNorm, RMSNorm and GroupNorm scale the whole layer, not its neurons.

With uniform sparsity every gradient grows by 1/sqrt(1 - s), as under BatchNorm. With heterogeneous fan-in the picture parts: the
divisor of LayerNorm and RMSNorm is shared by all neurons of the layer, that of GroupNorm by a group, so what counts is the mean
density of those who share it. There is no skew between neurons to correct, and a per-neuron correction would create one.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sparseopt.analysis.batch_norm import amplification
from sparseopt.analysis.fan_in_law import neuron_scale, power_law
from sparseopt.analysis.twins import GROUPS, gradients, sparse_twin
from sparseopt.lab.analyses.analysis import Analysis, Result, Track
from sparseopt.lab.analyses.bn_ratio import TwinSettings, centre_and_spread, deviation, measure_norms, twin
from sparseopt.lab.analyses.inputs import Inputs, batches
from sparseopt.lab.errors import require
from sparseopt.lab.show.colors import COLORS, MARKERS
from sparseopt.lab.show.figures import THEORY, panels, style
from sparseopt.lab.show.statistics import over_seeds
from sparseopt.lab.show.table import Table
from sparseopt.lab.show.words import counted
from sparseopt.topology import generator
from sparseopt.topology.start.masks import mask_with_fan_in

UNIFORM = {"layer": "LayerNorm", "rms": "RMSNorm", "group": f"GroupNorm, {GROUPS} groups"}
HETEROGENEOUS = {"batch": "BatchNorm", **UNIFORM}


@dataclass(frozen=True)
class LnRatioSettings(TwinSettings):
    """Dense and sparse twins behind several norms."""

    mask: str = "constant"
    """Fan-in of the masks at uniform sparsity: constant, random, or bimodal:R."""
    least_sparsity: float = 0.5
    """Heterogeneous layer: sparsity of its densest neuron. Densities fall evenly in logarithms, neuron by neuron ..."""
    largest_sparsity: float = 0.98
    """... to this sparsity of the last one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.hidden % GROUPS == 0,
            "hidden",
            self.hidden,
            f"a multiple of {GROUPS}, the groups of GroupNorm",
        )
        for option in ("least_sparsity", "largest_sparsity"):
            value = getattr(self, option)
            require(0 <= value < 1, option, value, "at least 0 and less than 1")
        below = f"less than --largest-sparsity, which is {self.largest_sparsity:g}"
        require(self.least_sparsity < self.largest_sparsity, "least_sparsity", self.least_sparsity, below)


def measure(settings: LnRatioSettings, track: Track) -> Result:
    result = measure_norms(settings, tuple(UNIFORM), track)
    return result | {"heterogeneous": _measure_heterogeneous(settings, track)}


def _measure_heterogeneous(settings: LnRatioSettings, track: Track) -> dict[str, Any]:
    ratios: dict[str, list[Tensor]] = {norm: [] for norm in HETEROGENEOUS}
    density = torch.empty(0)
    for seed in track(range(settings.seed, settings.seed + settings.seeds), "heterogeneous layer"):
        inputs = batches(settings.inputs, settings.data_dir, settings.batches, settings.batch_size, seed)
        fan_in = _falling_fan_in(settings, inputs.images.shape[-1])
        density = fan_in.double() / inputs.images.shape[-1]
        for norm, by_seed in ratios.items():
            by_seed.append(neuron_ratio(settings, norm, seed, inputs, fan_in))
    return {
        "density": density.tolist(),
        "theory": {norm: _theory(density, norm).tolist() for norm in HETEROGENEOUS},
        "ratio": {norm: torch.stack(by_seed).tolist() for norm, by_seed in ratios.items()},
        "slope": {
            norm: [power_law(density, ratio).slope for ratio in by_seed] for norm, by_seed in ratios.items()
        },
    }


def _falling_fan_in(settings: LnRatioSettings, inputs: int) -> Tensor:
    first, last = 1 - torch.tensor([settings.least_sparsity, settings.largest_sparsity])
    density = torch.logspace(float(first.log10()), float(last.log10()), settings.hidden)
    return (density * inputs).round().clamp(min=1).long()


def neuron_ratio(settings: TwinSettings, norm: str, seed: int, inputs: Inputs, fan_in: Tensor) -> Tensor:
    """Mean |gradient| of each neuron's active weights, sparse over dense."""
    model = twin(settings, norm, seed, inputs.images.shape[-1])
    mask = mask_with_fan_in(model.layer, fan_in, generator(seed, "mask"))
    scales = [
        neuron_scale(gradients(network, inputs.images, inputs.labels).weight.abs().mean(dim=0), mask)
        for network in (model, sparse_twin(model, mask))
    ]
    return scales[1] / scales[0]


def _theory(density: Tensor, norm: str) -> Tensor:
    """Amplification by the mean density of the neurons that share a divisor."""
    sharing = {"batch": 1, "group": len(density) // GROUPS}.get(norm, len(density))
    return amplification(1 - density.view(-1, sharing).mean(dim=1)).repeat_interleave(sharing)


def draw(result: Result) -> Figure:
    with style():
        figure, (uniform, first, second) = panels(3)
        _draw_uniform(uniform, result)
        _draw_heterogeneous(first, result["heterogeneous"], ("batch", "layer"))
        first.set_title("Heterogeneous: one divisor a neuron, a layer")
        _draw_heterogeneous(second, result["heterogeneous"], ("rms", "group"))
        second.set_title("Heterogeneous: one divisor a layer, a group")
    return figure


def _draw_uniform(axis: Axes, result: Result) -> None:
    fine = np.linspace(0, max(result["sparsities"]), 200)
    axis.plot(fine, 1 / np.sqrt(1 - fine), label=r"theory $1/\sqrt{1-s}$", **THEORY)
    for series, (norm, label) in enumerate(UNIFORM.items(), start=1):
        mean, spread = centre_and_spread(result["curves"][norm]["weight"])
        offset = np.array(result["sparsities"]) + 0.01 * (series - 2)
        axis.errorbar(
            offset,
            mean,
            spread,
            color=COLORS[series],
            fmt=MARKERS[series],
            capsize=2,
            lw=1,
            ms=4,
            label=label,
        )
    axis.set(
        title="Uniform sparsity", xlabel="sparsity $s$ of the layer", ylabel="gradient ratio, sparse / dense"
    )
    axis.legend(loc="upper left")


def _draw_heterogeneous(axis: Axes, result: dict[str, Any], norms: tuple[str, ...]) -> None:
    density = np.array(result["density"])
    for norm in norms:
        series = list(HETEROGENEOUS).index(norm)
        mean, _ = centre_and_spread(result["ratio"][norm])
        axis.plot(
            density,
            mean,
            MARKERS[series],
            color=COLORS[series],
            ms=3.5,
            alpha=0.85,
            label=HETEROGENEOUS[norm],
        )
        last = "theory" if norm == norms[-1] else None
        axis.plot(
            density,
            result["theory"][norm],
            drawstyle="steps-mid" if norm == "group" else None,
            label=last,
            **THEORY,
        )
    axis.set(xscale="log", yscale="log", ylim=(1, 14))
    axis.set(xlabel=r"density $1-s_i$ of neuron $i$", ylabel="gradient ratio of neuron $i$")
    axis.set_xticks([0.02, 0.05, 0.1, 0.2, 0.5], ["0.02", "0.05", "0.1", "0.2", "0.5"])
    axis.set_yticks([1, 2, 3, 5, 8], ["1", "2", "3", "5", "8"])
    axis.minorticks_off()
    axis.legend(loc="upper right", ncols=2)


def table(result: Result) -> Table:
    rows = []
    for norm, label in HETEROGENEOUS.items():
        uniform = "" if norm not in UNIFORM else "{:+.1%} / {:+.1%}".format(*deviation(result, norm))
        slopes = result["heterogeneous"]["slope"][norm]
        rows.append((label, uniform, over_seeds(slopes, "+.3f"), f"{np.mean(slopes) + 0.5:+.3f}"))
    return Table(
        ("norm", "from 1/sqrt(1-s), mean / worst", "slope over neurons", "slope after the correction"),
        rows,
        [
            f"Inputs: {result['inputs']}; {counted(len(result['heterogeneous']['slope']['batch']), 'seed')}.",
            "Under BatchNorm each neuron has its own divisor: slope -0.5, which the correction removes. LayerNorm and RMSNorm "
            "divide all neurons of a layer by one number: there is no slope, and the per-neuron correction would create one of "
            "about +0.5. GroupNorm lies between: one step a group.",
        ],
    )


ANALYSIS = Analysis(
    "LayerNorm, RMSNorm, GroupNorm: uniform and heterogeneous sparsity", LnRatioSettings, measure, draw, table
)
