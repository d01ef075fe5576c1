"""The curves of runs in one picture: one colour a run, or one a configuration with its mean over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from sparseopt.lab.runs.catalogue import Run, labels
from sparseopt.lab.runs.groups import grouped
from sparseopt.lab.show.colors import INK
from sparseopt.lab.show.figures import palette, panels, put_legend, style

TRAIN = {"linestyle": (0, (2, 1.2)), "linewidth": 1.1, "alpha": 0.75}

PANELS = (
    ("Accuracy", ("test_accuracy", "train_accuracy")),
    ("Loss", ("test_loss", "train_loss")),
    ("ITOP rate: weights explored so far", ("itop_rate",)),
    ("Spread of fan-in within layers (std / mean)", ("fan_in_spread",)),
    ("Spread of skew factors within layers (std)", ("factor_spread",)),
    ("Sparsity", ("sparsity",)),
)
OF_ANY_NETWORK = ("test_accuracy", "test_loss")  # the other panels are about masks, which a dense run has not
SHARES = ("test_accuracy", "itop_rate", "sparsity")


@dataclass(frozen=True)
class _Series:
    """What one colour stands for: a run, or all seeds of a configuration."""

    label: str
    runs: Sequence[Run]

    @property
    def dense(self) -> bool:
        return self.runs[0].config.method == "dense"

    def values(self, metric: str) -> np.ndarray:
        """One row a run, over the epochs that all of them have reached."""
        epochs = min(len(run.rows) for run in self.runs)
        return np.array([[row[metric] for row in run.rows[:epochs]] for run in self.runs])


def draw_curves(runs: Sequence[Run]) -> Figure:
    """Accuracy, loss, ITOP rate, spreads and sparsity by epoch, training dashed.

    Where runs differ in nothing but their seed, they become one line, their mean, in a band of their standard deviation.
    """
    series = _series(runs)
    colors = palette(len(series))
    with style():
        figure, axes = panels(3, 2, width=3.5, height=2.6)
        for axis, (title, metrics) in zip(axes, PANELS, strict=True):
            axis.set_title(title)
            axis.set_xlabel("epoch")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            for each, color in zip(series, colors, strict=True):
                if metrics[0] in OF_ANY_NETWORK or not each.dense:
                    _draw(axis, each, metrics, color)
            if metrics[0] in SHARES:
                axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
        _flat_if_constant(axes[-1], [run.last["sparsity"] for run in runs if run.config.method != "dense"])
        _legend(figure, series, colors)
    return figure


def _series(runs: Sequence[Run]) -> list[_Series]:
    groups = grouped(runs)
    if len(groups) == len(runs):
        return [_Series(label, [run]) for label, run in zip(labels(list(runs)), runs, strict=True)]
    names = [f"{group.label} ({_seeds(group.runs)})" for group in groups]
    return [_Series(name, group.runs) for name, group in zip(names, groups, strict=True)]


def _seeds(runs: Sequence[Run]) -> str:
    return f"seed {runs[0].config.seed}" if len(runs) == 1 else f"{len(runs)} seeds"


def _draw(axis: Axes, series: _Series, metrics: tuple[str, ...], color: str) -> None:
    for metric in metrics:
        values = series.values(metric)
        epochs = np.arange(1, values.shape[1] + 1)
        kind = TRAIN if metric.startswith("train") else {}
        marker = "o" if len(epochs) == 1 else None  # a line of one point cannot be seen
        mean = values.mean(axis=0)
        axis.plot(epochs, mean, color=color, marker=marker, **kind)
        if len(values) > 1 and not kind:
            spread = values.std(axis=0, ddof=1)
            axis.fill_between(epochs, mean - spread, mean + spread, color=color, alpha=0.18, linewidth=0)


def _flat_if_constant(axis: Axes, values: list[float]) -> None:
    """Give a constant a scale that shows it as one, not the rounding of its last digit."""
    if values and max(values) - min(values) < 0.01:
        axis.set_ylim(min(values) - 0.02, min(1.0, max(values) + 0.02))


def _legend(figure: Figure, series: Sequence[_Series], colors: Sequence[str]) -> None:
    handles: list[Line2D | Patch] = [Line2D([], [], color=color) for color in colors]
    names = [each.label for each in series]
    handles += [Line2D([], [], color=INK), Line2D([], [], color=INK, **TRAIN)]
    names += ["test", "train"]
    if any(len(each.runs) > 1 for each in series):
        handles.append(Patch(color=INK, alpha=0.18, linewidth=0))
        names.append("standard deviation over seeds")
    put_legend(figure, handles, names, columns=4)
