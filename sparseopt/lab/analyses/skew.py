"""How skewed is a trained network? `so.analysis.skew_report` on a run or one of its checkpoints.

docs/analyses.md tells how to read it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

import sparseopt as so
from sparseopt.analysis.skew import LayerSkew, can_be_tried, verdict
from sparseopt.lab.analyses.analysis import Analysis, Result, Track
from sparseopt.lab.data import Batch
from sparseopt.lab.errors import UserError, require, require_positive
from sparseopt.lab.runs.checkpoint import decode
from sparseopt.lab.show.colors import COLORS, MARKERS
from sparseopt.lab.show.figures import THEORY, panels, style
from sparseopt.lab.show.table import Table
from sparseopt.lab.show.words import layer_label
from sparseopt.lab.training.experiment import Experiment
from sparseopt.lab.training.restore import restore, with_dense_storage
from sparseopt.lab.training.trainer import Trainer
from sparseopt.optim.correction import Mode, in_force

FEW = 8  # up to so many layers, the four panels go into two rows
COARSE = (0.001, 0.01, 0.1, 0.3, 1, 3, 10, 100)
FINE = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10)


@dataclass(frozen=True)
class SkewSettings:
    """The skew of a run."""

    run: tyro.conf.Positional[Path]
    """Folder of a run (its last checkpoint is read), or one of the files in its checkpoints folder."""
    batches: int = 4
    """Training batches that the gradients are averaged over."""
    drop_fraction: float = 0.3
    """Share of the active weights that the tried mask update moves."""
    correction: Mode | None = None
    """Correction whose factors are looked at; None: the run's own, or layer where it has none of these."""
    data_dir: Path | None = None
    """Folder with the data set's files; None: $SPARSEOPT_DATA, else the cache."""

    def __post_init__(self) -> None:
        require_positive(self, "batches")
        require(0 <= self.drop_fraction <= 1, "drop_fraction", self.drop_fraction, "between 0 and 1")


def measure(settings: SkewSettings, track: Track) -> Result:
    trainer = _restored(settings)
    experiment = trainer.experiment
    if experiment.topology is None:
        raise UserError(f"{settings.run} is a dense run: there is no sparsity that could skew its gradients")
    batches = [
        batch for batch, _ in zip(experiment.data.train_batches(0), range(settings.batches), strict=False)
    ]
    experiment.model.train()
    correction = settings.correction or _own_correction(experiment)
    (report,) = (
        so.analysis.skew_report(
            experiment.model,
            experiment.topology,
            lambda model: _loss(model, batches),
            method=_method(experiment),
            drop_fraction=settings.drop_fraction,
            correction=correction,
        )
        for _ in track([None], "gradients before and after a mask update")
    )
    return {
        "run": str(settings.run),
        "step": trainer.step,
        "correction": correction,
        "rotation": report.rotation,
        "jump": report.jump,
        "corrected_jump": report.corrected_jump,
        "layers": {name: _plain(layer) for name, layer in report.layers.items()},
    }


def _restored(settings: SkewSettings) -> Trainer:
    path = settings.run
    if not path.is_file():
        return with_dense_storage(restore(path, data_dir=settings.data_dir), settings.data_dir)
    trainer = restore(path.parent.parent, data_dir=settings.data_dir)
    try:
        trainer.load_state_dict(decode(path.read_bytes(), trainer.experiment.device))
    except ValueError as error:
        raise UserError(
            f"{path} cannot be used: {error}; name another checkpoint, or the folder of the run"
        ) from error
    return with_dense_storage(trainer, settings.data_dir)


def _method(experiment: Experiment) -> so.Method | None:
    """The run's own method if it moves connections, as many as before, else the report's default."""
    method = experiment.optimizer.method if isinstance(experiment.optimizer, so.SparseOpt) else None
    return method if method is not None and can_be_tried(method) else None


def _own_correction(experiment: Experiment) -> Mode | Literal["auto"]:
    """The one that the run trains with, if it is one of the library's; else that of the paper."""
    optimizer = experiment.optimizer
    own = in_force(optimizer.correction, optimizer.method) if isinstance(optimizer, so.SparseOpt) else "none"
    return "layer" if callable(own) or own == "none" else own


def _loss(model: nn.Module, batches: list[Batch]) -> Tensor:
    return torch.stack([F.cross_entropy(model(x), y) for x, y in batches]).mean()


def _plain(layer: LayerSkew) -> dict[str, Any]:
    """A layer's numbers as JSON has them; a neuron without inputs has no gradient scale."""
    alive = layer.fan_in > 0
    return {
        "fan_in": layer.fan_in.tolist(),
        "inactive_neurons": int((~alive).sum()),
        "density": layer.density[alive].tolist(),
        "scale": layer.scale[alive].tolist(),
        "factor": layer.factor.tolist(),
        "factor_spread": layer.factor_spread,
        "slope": layer.law.slope,
        "slope_error": layer.law.error,
        "corrected_slope": layer.corrected_law.slope,
        "norm": layer.norm[alive].tolist(),
        "norm_slope": layer.norm_law.slope,
        "corrected_norm_slope": layer.corrected_norm_law.slope,
        "rotation": layer.rotation,
        "jump": layer.jump,
        "corrected_jump": layer.corrected_jump,
    }


def draw(result: Result) -> Figure:
    layers = result["layers"]
    with style():
        height = max(2.8, 0.9 + 0.24 * len(layers))
        columns = 2 if len(layers) <= FEW else 4
        figure, axes = panels(columns, 4 // columns, width=4.0 if columns == 2 else 3.4, height=height)
        _draw_fan_in(axes[0], layers)
        _draw_slopes(axes[1], layers)
        _draw_angles(axes[2], layers)
        _draw_neurons(axes[3], layers)
        names = [layer_label(name, len(layer["fan_in"])) for name, layer in layers.items()]
        for index, axis in enumerate(axes[:3]):
            axis.set_yticks(range(len(layers)), names if index % columns == 0 else [""] * len(layers))
            axis.set_ylim(len(layers) - 0.5, -1.7)
    return figure


def _draw_fan_in(axis: Axes, layers: dict[str, Any]) -> None:
    """Least, quartiles and largest fan-in relative to the layer's mean."""
    for row, layer in enumerate(layers.values()):
        relative = np.array(layer["fan_in"]) / np.mean(layer["fan_in"])
        least, low, high, largest = np.quantile(relative, [0, 0.25, 0.75, 1])
        axis.plot([least, largest], [row, row], color=COLORS[0], lw=1, solid_capstyle="butt")
        axis.plot([low, high], [row, row], color=COLORS[0], lw=5, solid_capstyle="butt")
        axis.plot(np.median(relative), row, "|", color=COLORS[0], ms=9, mew=1.5)
    axis.axvline(1, **THEORY)
    axis.set(
        title="Spread of fan-in",
        xlabel="fan-in / mean of the layer\n(bar: quartiles, tick: median, line: range)",
    )


def _draw_slopes(axis: Axes, layers: dict[str, Any]) -> None:
    rows = np.arange(len(layers))
    slopes, errors = ([layer[key] for layer in layers.values()] for key in ("slope", "slope_error"))
    corrected = [layer["corrected_slope"] for layer in layers.values()]
    slopes, errors, corrected = (np.array(values, dtype=float) for values in (slopes, errors, corrected))
    axis.errorbar(
        slopes, rows, xerr=errors, fmt=MARKERS[0], color=COLORS[0], capsize=2, lw=1, label="as it is"
    )
    axis.plot(corrected, rows, MARKERS[1], color=COLORS[1], label="corrected")
    axis.axvline(-0.5, **THEORY)
    axis.axvline(0, **THEORY)
    axis.set(title="Slope of the gradient scale", xlabel=r"slope against $1-s_i$ (theory: $-0.5$, then 0)")
    axis.legend(loc="upper center", ncols=2, fontsize=8.5)


def _draw_angles(axis: Axes, layers: dict[str, Any]) -> None:
    rows = np.arange(len(layers))
    shown = {
        "rotation": "by the correction",
        "jump": "by a mask update",
        "corrected_jump": "by an update, corrected",
    }
    for series, (key, label) in zip((2, 0, 1), shown.items(), strict=True):
        values = [layer[key] for layer in layers.values()]
        axis.plot(values, rows, MARKERS[series], color=COLORS[series], label=label)
    axis.set(title="What turns the gradient", xlabel="angle (degrees)")
    axis.set_xlim(left=0)
    axis.legend(loc="upper center", ncols=2, fontsize=7.5, columnspacing=0.8, handletextpad=0.2)


def _draw_neurons(axis: Axes, layers: dict[str, Any]) -> None:
    """Every neuron: measured against predicted, both relative to the geometric mean of the layer."""
    pairs = []
    for layer in layers.values():
        density, scale = np.array(layer["density"]), np.array(layer["scale"])
        keep = scale > 0
        predicted, measured = density[keep] ** -0.5, scale[keep]
        if keep.any():
            pairs.append(
                (predicted / np.exp(np.log(predicted).mean()), measured / np.exp(np.log(measured).mean()))
            )
    predicted, measured = (np.concatenate(values) for values in zip(*pairs, strict=True))
    axis.plot(predicted, measured, ".", color=COLORS[0], ms=3, alpha=0.35)
    ends = np.array([predicted.min(), predicted.max()])
    axis.plot(ends, ends, label="theory", **THEORY)
    axis.set(xscale="log", yscale="log", title="Gradient scale of every neuron")
    axis.set(xlabel=r"predicted: $(1-s_i)^{-1/2}$, relative", ylabel="measured, relative")
    for set_ticks, values in ((axis.set_xticks, predicted), (axis.set_yticks, measured)):
        ticks = FINE if values.max() < 30 * values.min() else COARSE
        inside = [tick for tick in ticks if values.min() <= tick <= values.max()]
        set_ticks(inside, [f"{tick:g}" for tick in inside])
    axis.minorticks_off()
    axis.legend(loc="lower left")


def table(result: Result) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            name,
            f"{min(layer['fan_in'])} / {np.median(layer['fan_in']):g} / {max(layer['fan_in'])}",
            f"{layer['factor_spread']:.2f}",
            _number(layer["slope"]),
            _number(layer["corrected_slope"]),
            _number(layer["norm_slope"]),
            _number(layer["corrected_norm_slope"]),
            f"{layer['rotation']:.1f}°",
            f"{layer['jump']:.1f}°",
            f"{layer['corrected_jump']:.1f}°",
        )
        for name, layer in result["layers"].items()
    ]
    angles = (result[key] for key in ("rotation", "jump", "corrected_jump"))
    slopes = ("slope", "corrected_slope", "norm_slope", "corrected_norm_slope")
    medians = (_number(_median([layer[key] for layer in result["layers"].values()])) for key in slopes)
    rows.append(("network (slopes: median)", "", "", *medians, *(f"{value:.1f}°" for value in angles)))
    columns = (
        "layer",
        "fan-in least / median / largest",
        "factor spread",
        "slope",
        "slope corrected",
        "norm slope",
        "norm slope corrected",
        "rotation",
    )
    return Table((*columns, "jump", "jump corrected"), rows, _notes(result))


def _median(values: list[float]) -> float | None:
    known = [value for value in values if value is not None and np.isfinite(value)]
    return float(np.median(known)) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _notes(result: Result) -> list[str]:
    spreads = [layer["factor_spread"] for layer in result["layers"].values()]
    layers = result["layers"].values()
    change = (
        "The factors differ little within the layers: the correction changes little here."
        if max(spreads) < 0.15
        else "The factors differ clearly within some layers: there the correction changes the direction of the step."
    )
    return [
        f"{result['run']}, step {result['step']}, correction {result['correction']}: factor spread {min(spreads):.2f} to "
        f"{max(spreads):.2f}. {change}",
        verdict(*([layer[key] for layer in layers] for key in ("slope", "slope_error", "corrected_slope"))),
        f"A mask update would turn the network's gradient by {result['jump']:.1f}°, the corrected one by "
        f"{result['corrected_jump']:.1f}° (grown weights start at zero: the factors count them at once, the gradient does not).",
    ]


ANALYSIS = Analysis(
    "the skew of a trained network: sparseopt analyse skew RUN", SkewSettings, measure, draw, table
)
