"""The skew neuron by neuron: a layer whose neurons differ in fan-in, at initialisation and along training.

Theory says that the gradient scale of a neuron is proportional to (1 - s_i)^(-1/2): slope -1/2 in logarithms, and slope 0 after
the correction. It also says that the correction equalises the angular rate ||g|| / ||w||, and it must break for tiny fan-in,
where BatchNorm's gradient, orthogonal to the weights, has hardly a direction left.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sparseopt.analysis.fan_in_law import angular_rate, cosine, neuron_scale, orthogonality_loss, power_law
from sparseopt.analysis.twins import Gradients, gradients, sparse_twin
from sparseopt.lab.analyses.analysis import Analysis, Result, Track
from sparseopt.lab.analyses.bn_ratio import TwinSettings, centre_and_spread, twin
from sparseopt.lab.analyses.fan_in_training import measure_training
from sparseopt.lab.analyses.inputs import Inputs, batches
from sparseopt.lab.errors import require, require_positive
from sparseopt.lab.show.colors import COLORS, MARKERS
from sparseopt.lab.show.figures import THEORY, panels, style
from sparseopt.lab.show.statistics import over_seeds
from sparseopt.lab.show.table import Table
from sparseopt.lab.show.words import counted
from sparseopt.topology import generator
from sparseopt.topology.skew import relative_scale
from sparseopt.topology.start.masks import mask_with_fan_in

PIXELS = 784  # of the digits, and of the noise in their place


@dataclass(frozen=True)
class FanInSettings(TwinSettings):
    """A BatchNorm layer of heterogeneous fan-in."""

    sparsities: tuple[float, ...] = (0.5, 0.75, 0.9, 0.95, 0.98)
    """Sparsities of the neurons, in turn."""
    seeds: int = 10
    """Initialisations, each with its own masks and batches."""
    small: tuple[int, ...] = (1, 2, 3, 5, 8, 16, 32)
    """Fan-ins at which the limits of the law are shown."""
    steps: tuple[int, ...] = (0, 25, 50, 100, 200, 400, 800)
    """Steps of a training at which the slopes are measured again; empty to leave it out."""
    training_seeds: int = 3
    """Seeds of that training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "training_seeds")
        require(
            bool(self.small) and min(self.small) >= 1,
            "small",
            self.small,
            "one or more fan-ins of at least 1",
        )
        require(
            max(self.small) <= PIXELS,
            "small",
            self.small,
            f"fan-ins of at most {PIXELS}, the inputs there are",
        )
        distinct = len(set(self.sparsities))
        require(distinct >= 2, "sparsities", self.sparsities, "two or more, to have a slope")
        most = max(len(self.small), len(self.sparsities))
        require(self.hidden >= most, "hidden", self.hidden, f"at least {most}, one neuron for each fan-in")
        require(all(step >= 0 for step in self.steps), "steps", self.steps, "steps of at least 0")


def measure(settings: FanInSettings, track: Track) -> Result:
    seeds = range(settings.seed, settings.seed + settings.seeds)
    by_seed, small, seen, fan_in = [], [], "", torch.empty(0)
    for seed in track(seeds, "heterogeneous layer"):
        inputs = batches(settings.inputs, settings.data_dir, settings.batches, settings.batch_size, seed)
        seen = inputs.name
        fan_in = _fan_in(settings, inputs.images.shape[-1])
        by_seed.append(_measure_law(settings, seed, inputs, fan_in))
        small.append(_measure_small(settings, seed, inputs))
    return {
        "inputs": seen,
        "law": {key: [entry[key] for entry in by_seed] for key in by_seed[0]},
        "small": {"fan_in": list(settings.small)}
        | {key: _pooled([each[key] for each in small]) for key in small[0]},
        "training": _measure_training(settings, fan_in, track),
    }


def _fan_in(settings: FanInSettings, pixels: int) -> Tensor:
    """The fan-in of each neuron: the settings' sparsities in turn."""
    levels = ((1 - torch.tensor(settings.sparsities)) * pixels).round().clamp(min=1).long()
    return levels[torch.arange(settings.hidden) % len(levels)]


def _measure_training(settings: FanInSettings, fan_in: Tensor, track: Track) -> dict[str, Any] | None:
    if not settings.steps:
        return None
    return measure_training(settings, fan_in, settings.steps, settings.training_seeds, track)


def _measure_law(settings: FanInSettings, seed: int, inputs: Inputs, fan_in: Tensor) -> dict[str, Any]:
    weight, mask, dense, sparse = _twin_gradients(settings, seed, inputs, fan_in)
    density = fan_in.double() / inputs.images.shape[-1]
    factor = relative_scale(fan_in, fan_in.double().mean())
    scales = [neuron_scale(g.weight.abs().mean(dim=0), mask) for g in (dense, sparse)]
    ratio = scales[1] / scales[0]
    rate = torch.stack([angular_rate(weight, grad, mask) for grad in sparse.weight]).mean(dim=0)
    corrected = sparse.weight * factor.unsqueeze(1)
    return {
        "density": density.tolist(),
        "ratio": ratio.tolist(),
        "corrected_ratio": (ratio * factor).tolist(),
        "slope": power_law(density, ratio).slope,
        "corrected_slope": power_law(density, ratio * factor).slope,
        "rate": rate.tolist(),
        "corrected_rate": (rate * factor).tolist(),
        "rate_slope": power_law(density, rate).slope,
        "corrected_rate_slope": power_law(density, rate * factor).slope,
        "cosine": _mean_cosine(sparse.weight * mask, dense.weight * mask),
        "corrected_cosine": _mean_cosine(corrected * mask, dense.weight * mask),
    }


def _measure_small(settings: FanInSettings, seed: int, inputs: Inputs) -> dict[str, Any]:
    """Measured over theory for small fan-in: of the weights' root mean square, and of the pre-activations."""
    levels = torch.tensor(settings.small)
    fan_in = levels[torch.arange(settings.hidden) % len(levels)]
    _, mask, dense, sparse = _twin_gradients(settings, seed, inputs, fan_in)
    amplified = (fan_in / inputs.images.shape[-1]).rsqrt()
    weights = [(g.weight.square().mean(dim=0) * mask).sum(dim=1).div(fan_in).sqrt() for g in (dense, sparse)]
    before = [g.preactivation.abs().mean(dim=(0, 1)) for g in (dense, sparse)]
    return {
        "weight": _by_level(weights[1] / weights[0] / amplified, fan_in, levels),
        "preactivation": _by_level(before[1] / before[0] / amplified, fan_in, levels),
    }


def _twin_gradients(
    settings: FanInSettings, seed: int, inputs: Inputs, fan_in: Tensor
) -> tuple[Tensor, Tensor, Gradients, Gradients]:
    model = twin(settings, "batch", seed, inputs.images.shape[-1])
    mask = mask_with_fan_in(model.layer, fan_in, generator(seed, "mask", *fan_in.unique().tolist()))
    dense, sparse = (
        gradients(each, inputs.images, inputs.labels) for each in (model, sparse_twin(model, mask))
    )
    return model.first.weight.detach(), mask, dense, sparse


def _by_level(values: Tensor, fan_in: Tensor, levels: Tensor) -> list[list[float]]:
    """The values of the neurons of each fan-in."""
    return [values[fan_in == level].tolist() for level in levels]


def _pooled(by_seed: list[list[list[float]]]) -> list[list[float]]:
    """All neurons of each fan-in, over the seeds."""
    return [[value for values in level for value in values] for level in zip(*by_seed, strict=True)]


def _mean_cosine(first: Tensor, second: Tensor) -> float:
    """Over the batches, the mean cosine of the angle between two gradients."""
    return fmean(cosine(a, b) for a, b in zip(first, second, strict=True))


def draw(result: Result) -> Figure:
    with style():
        wanted = 4 if result["training"] else 3
        figure, axes = panels(2, 2, width=4.2, height=3.0) if wanted == 4 else panels(3)
        draw_law(axes[0], result["law"])
        _draw_rate(axes[1], result["law"])
        _draw_small(axes[2], result["small"])
        if result["training"]:
            _draw_training(axes[3], result["training"])
    return figure


def draw_law(axis: Axes, law: dict[str, Any]) -> None:
    """Per-neuron gradient ratio against density, before and after the correction, with the slopes."""
    density, ratio = np.array(law["density"]), np.array(law["ratio"])
    corrected = np.array(law["corrected_ratio"])
    fine = np.geomspace(density.min(), density.max(), 50)
    axis.plot(fine, fine**-0.5, label="theory", **THEORY)
    axis.plot(fine, np.full_like(fine, density.mean() ** -0.5), **THEORY)
    _scatter(axis, density, ratio, 0, f"plain: slope {_pm(law['slope'])}")
    _scatter(axis, density, corrected, 1, f"corrected: slope {_pm(law['corrected_slope'])}")
    axis.set(title="Gradient scale of a neuron", ylabel="gradient ratio, sparse / dense")
    _density_axis(axis, density)


def _draw_rate(axis: Axes, law: dict[str, Any]) -> None:
    density = np.array(law["density"])
    _scatter(axis, density, np.array(law["rate"]), 0, f"plain: slope {_pm(law['rate_slope'])}")
    _scatter(
        axis,
        density,
        np.array(law["corrected_rate"]),
        1,
        f"corrected: slope {_pm(law['corrected_rate_slope'])}",
    )
    axis.set(title="Angular rate of a neuron", ylabel=r"$\|g_i\|\,/\,\|w_i\|$")
    _density_axis(axis, density)


def _scatter(axis: Axes, density: np.ndarray, values: np.ndarray, series: int, label: str) -> None:
    """All neurons of all seeds, faint, and the geometric mean of each density."""
    jitter = np.exp(0.03 * (2 * series - 1))
    axis.plot(density.ravel() * jitter, values.ravel(), ".", color=COLORS[series], ms=2.5, alpha=0.25)
    levels = np.unique(density)
    means = [np.exp(np.log(values[density == level]).mean()) for level in levels]
    axis.plot(levels * jitter, means, MARKERS[series], color=COLORS[series], ms=6, label=label)


def _density_axis(axis: Axes, density: np.ndarray) -> None:
    levels = np.unique(density)
    axis.set(xscale="log", yscale="log", xlabel=r"density $1-s_i$ of neuron $i$")
    axis.set_xticks(levels, [f"{level:.2g}" for level in levels])
    low, high = axis.get_ylim()
    axis.set_ylim(low, high * (high / low) ** 0.45)  # room for the legend
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if low < tick < high]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.legend(loc="upper right")


def _draw_small(axis: Axes, small: dict[str, Any]) -> None:
    fan_in = np.array(small["fan_in"])
    fine = torch.logspace(0, float(np.log10(fan_in.max())), 200)
    axis.plot(fine, orthogonality_loss(fine), label=r"$\sqrt{1-1/k}$: no gradient along $w$", **THEORY)
    for series, (key, label) in enumerate(
        (("weight", "weights (rms)"), ("preactivation", "pre-activations")), start=2
    ):
        low, median, high = (
            np.array([np.quantile(values, q) for values in small[key]]) for q in (0.25, 0.5, 0.75)
        )
        bars = [median - low, high - median]
        at = fan_in * (1 + 0.05 * (series - 2))
        axis.errorbar(
            at, median, bars, color=COLORS[series], fmt=MARKERS[series], capsize=2.5, lw=1.2, label=label
        )
    axis.axhline(1, color=COLORS[7], lw=0.8)
    axis.set(
        xscale="log", title="Where the law breaks", xlabel="fan-in $k$", ylabel=r"measured / $(1-s_i)^{-1/2}$"
    )
    axis.set_ylim(0, 2.9)  # at fan-in 1 the quartiles of a few silent pixels reach further
    axis.set_xticks(fan_in, [str(k) for k in fan_in])
    axis.minorticks_off()
    axis.legend(loc="upper right")


def _draw_training(axis: Axes, training: dict[str, Any]) -> None:
    positions = np.arange(len(training["steps"]))
    for series, (correction, label) in enumerate((("none", "trained plain"), ("layer", "trained corrected"))):
        for key, line, what in (
            ("rate_slope", "-", "as it is"),
            ("corrected_rate_slope", ":", "after correction"),
        ):
            mean, spread = centre_and_spread(training[correction][key])
            axis.errorbar(
                positions, mean, spread, color=COLORS[series], marker=MARKERS[series], ls=line, capsize=2, lw=1.3, ms=4,
                label=f"{label}: {what}",
            )  # fmt: skip
    axis.axhline(-0.5, **THEORY)
    axis.axhline(0, **THEORY)
    axis.set_xticks(positions, [str(step) for step in training["steps"]])
    axis.set(
        title="Slope of the angular rate, trained on digits",
        xlabel="step of SET",
        ylabel="slope against $1-s_i$",
    )
    axis.set_ylim(axis.get_ylim()[0], 1.75)  # room for the legend
    axis.legend(loc="upper center", fontsize=8, ncols=2, columnspacing=1)


def _pm(values: list[float]) -> str:
    mean, spread = centre_and_spread([[value] for value in values])
    return f"${mean[0]:+.3f}\\pm{spread[0]:.3f}$"


def table(result: Result) -> Table:
    law = result["law"]
    rows = [
        (label, over_seeds(law[key], "+.3f"), over_seeds(law[f"corrected_{key}"], "+.3f"), theory)
        for label, key, theory in (
            ("slope of the gradient scale", "slope", "-0.5, then 0"),
            ("slope of the angular rate", "rate_slope", "-0.5, then 0"),
            ("cosine to the dense gradient", "cosine", "1"),
        )
    ]
    small = result["small"]
    medians = {key: [np.median(values) for values in small[key]] for key in ("weight", "preactivation")}
    rows += [
        (f"fan-in {k}: weights, pre-activations / theory", f"{weight:.2f}, {before:.2f}", "", "1")
        for k, weight, before in zip(
            small["fan_in"], medians["weight"], medians["preactivation"], strict=True
        )
    ]
    return Table(("quantity", "plain", "corrected", "theory"), rows, _notes(result))


def _notes(result: Result) -> list[str]:
    notes = [
        f"Inputs: {result['inputs']}; mean ± standard deviation over {counted(len(result['law']['slope']), 'seed')} (fan-in "
        "rows: median over neurons). The cosine is over the weights active in the sparse twin, batch by batch.",
        "Below a fan-in of about 8 the law breaks: BatchNorm's gradient is orthogonal to the weights, and a neuron with a "
        "single input has next to no gradient, whatever its sparsity.",
    ]
    return notes + _training_notes(result["training"]) if result["training"] else notes


def _training_notes(training: dict[str, Any]) -> list[str]:
    def slope(correction: str, key: str, at: int) -> float:
        return float(np.mean(training[correction][key], axis=0)[at])

    return [
        f"Along {training['steps'][-1]} steps of SET on digits the slope of the angular rate goes from "
        f"{slope('none', 'rate_slope', 0):+.2f} to {slope('none', 'rate_slope', -1):+.2f} in the plain run and to "
        f"{slope('layer', 'rate_slope', -1):+.2f} in the corrected one (before the factor). Theory holds fixed what training "
        f"moves: in the plain run the slope of ||w|| goes from {slope('none', 'length_slope', 0):+.2f} to "
        f"{slope('none', 'length_slope', -1):+.2f}, that of |gamma| ||outgoing weights|| from "
        f"{slope('none', 'gain_slope', 0):+.2f} to {slope('none', 'gain_slope', -1):+.2f}."
    ]


ANALYSIS = Analysis("gradient scale, neuron by neuron, against fan-in", FanInSettings, measure, draw, table)
