"""The curves of one run or several, in one picture."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from sparseopt.lab.runs.catalogue import Run, labels
from sparseopt.lab.show.figures import COLORS, INK, panels, style

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


def draw_curves(runs: list[Run]) -> Figure:
    """Accuracy, loss, ITOP rate, spreads and sparsity by epoch; one colour a run, training dashed."""
    with style():
        figure, axes = panels(3, 2, width=3.5, height=2.6)
        for axis, (title, metrics) in zip(axes, PANELS, strict=True):
            axis.set_title(title)
            axis.set_xlabel("epoch")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            for series, run in enumerate(runs):
                if metrics[0] in OF_ANY_NETWORK or run.config.method != "dense":
                    _draw(axis, run, metrics, COLORS[series % len(COLORS)])
            if metrics[0] in SHARES:
                axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
        _flat_if_constant(axes[-1], [run.last["sparsity"] for run in runs if run.config.method != "dense"])
        _legend(figure, runs)
    return figure


def _draw(axis: Axes, run: Run, metrics: tuple[str, ...], color: str) -> None:
    epochs = [row["epoch"] for row in run.rows]
    for metric in metrics:
        kind = TRAIN if metric.startswith("train") else {}
        marker = "o" if len(epochs) == 1 else None  # a line of one point cannot be seen
        axis.plot(epochs, [row[metric] for row in run.rows], color=color, marker=marker, **kind)


def _flat_if_constant(axis: Axes, values: list[float]) -> None:
    """Give a constant a scale that shows it as one, not the rounding of its last digit."""
    if values and max(values) - min(values) < 0.01:
        axis.set_ylim(min(values) - 0.02, min(1.0, max(values) + 0.02))


def _legend(figure: Figure, runs: list[Run]) -> None:
    entries = [
        Line2D([], [], color=COLORS[series % len(COLORS)], label=label)
        for series, label in enumerate(labels(runs))
    ]
    kinds = [Line2D([], [], color=INK, label="test"), Line2D([], [], color=INK, label="train", **TRAIN)]
    handles = [*entries, *kinds]
    for columns in range(min(4, len(handles)), 0, -1):  # as many as the figure is wide enough for
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        if legend.get_window_extent().width <= figure.bbox.width or columns == 1:
            return
        legend.remove()
