"""Act 3, training: does the correction help? Paired seeds, a control, and masks on which little is to be expected."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparseopt.lab.demo.act import Act
from sparseopt.lab.demo.jobs import TrainingResult
from sparseopt.lab.demo.plan import CORRECTIONS, MASKS, DemoSettings
from sparseopt.lab.show.colors import COLORS, LINES, MARKERS
from sparseopt.lab.show.figures import band, panels, style
from sparseopt.lab.show.statistics import Comparison, compare, compare_relative
from sparseopt.lab.show.table import Table
from sparseopt.lab.show.words import counted

TrainingResults = Mapping[tuple[str, ...], Sequence[TrainingResult]]

TITLES = {"bimodal": "Heterogeneous masks (bimodal fan-in)", "ordinary": "Ordinary random masks"}
COMPARED = ("SparseOpt", "shuffled")
WINDOW = 6  # steps averaged to one point of a curve


def training_act(outcomes: TrainingResults, settings: DemoSettings) -> Act:
    """From the trainings with {masks} x {baseline, SparseOpt, shuffled}, seeds in the same order everywhere."""
    losses = {group: _mean_losses(runs) for group, runs in outcomes.items()}
    comparisons = {
        (masks, name): compare_relative(losses[masks, name], losses[masks, "baseline"])
        for masks in MASKS
        for name in COMPARED
    }
    return Act(
        number=3,
        name="training",
        title="Training",
        figure=_draw(outcomes, comparisons),
        caption=(
            f"SET at 95% sparsity, {counted(settings.seeds, 'seed')}, {counted(settings.epochs, 'epoch')}; runs of one seed "
            "share initial weights, masks and batches. Top: training loss, mean and standard deviation over seeds. Bottom: mean "
            "training loss over all steps relative to the baseline of the same seed; points are seeds, bars the mean with its "
            "95% confidence interval (Student's t). Shuffled is the control: the same factors, dealt to the wrong neurons of "
            "the layer."
        ),
        sentences=_sentences(outcomes, comparisons),
        table=_table(outcomes, comparisons),
    )


def _mean_losses(runs: Sequence[TrainingResult]) -> list[float]:
    return [run.mean_loss for run in runs]


def _accuracies(runs: Sequence[TrainingResult]) -> list[float]:
    return [run.result["test_accuracy"] for run in runs]


def _draw(outcomes: TrainingResults, comparisons: Mapping[tuple[str, str], Comparison]) -> Figure:
    with style():
        figure, axes = panels(2, 2, width=4.6, height=2.9, sharey="row")
        for column, masks in enumerate(MASKS):
            _draw_curves(axes[column], outcomes, masks)
            _draw_differences(axes[2 + column], comparisons, masks)
        axes[0].set_ylabel("training loss")
        axes[0].legend(loc="upper right")
        axes[2].set_ylabel("mean training loss\nagainst the baseline (%)")
    return figure


def _draw_curves(axis: Axes, outcomes: TrainingResults, masks: str) -> None:
    for series, name in enumerate(CORRECTIONS):
        curves = np.array([_smoothed(run.losses) for run in outcomes[masks, name]])
        steps = (np.arange(curves.shape[1]) + 0.5) * WINDOW
        line = LINES[series]
        band(
            axis,
            list(steps),
            curves.mean(axis=0),
            curves.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(curves.shape[1]),
            series=series,
            label=name,
            linestyle=line,
        )
    spread = np.mean([run.first_spread for run in outcomes[masks, "baseline"]])
    axis.set(yscale="log", title=TITLES[masks], xlabel=f"step (factor spread at the start: {spread:.2f})")


def _smoothed(losses: list[float]) -> np.ndarray:
    whole = len(losses) // WINDOW * WINDOW
    return np.array(losses[:whole]).reshape(-1, WINDOW).mean(axis=1)


def _draw_differences(axis: Axes, comparisons: Mapping[tuple[str, str], Comparison], masks: str) -> None:
    axis.axhline(0, color=COLORS[7], lw=0.9)
    for position, name in enumerate(COMPARED):
        comparison = comparisons[masks, name]
        color = COLORS[1 + position]
        points = 100 * np.array(comparison.differences)
        axis.plot(np.full(len(points), position - 0.12), points, ".", color=color, ms=5, alpha=0.5)
        mean, low, high = (100 * value for value in (comparison.mean, comparison.low, comparison.high))
        axis.errorbar(
            position + 0.12,
            mean,
            [[mean - low], [high - mean]],
            color=color,
            fmt=MARKERS[1 + position],
            capsize=5,
            ms=6,
        )
    axis.set_xticks(range(len(COMPARED)), COMPARED)
    axis.set_xlim(-0.6, len(COMPARED) - 0.4)


def _sentences(outcomes: TrainingResults, comparisons: Mapping[tuple[str, str], Comparison]) -> list[str]:
    spreads = {m: float(np.mean([run.first_spread for run in outcomes[m, "baseline"]])) for m in MASKS}
    accuracy = compare(
        _accuracies(outcomes["bimodal", "SparseOpt"]), _accuracies(outcomes["bimodal", "baseline"])
    )
    return [
        "Masks made heterogeneous on purpose: half of the neurons of a layer have 50 times the fan-in of the others, and the "
        f"factors spread by {spreads['bimodal']:.2f}. With SparseOpt {_verdict(comparisons['bimodal', 'SparseOpt'])}",
        f"The control, the same factors shuffled among the neurons: {_verdict(comparisons['bimodal', 'shuffled'])}",
        f"Ordinary random masks, where the factors spread by {spreads['ordinary']:.2f} only: with SparseOpt "
        f"{_verdict(comparisons['ordinary', 'SparseOpt'])}",
        f"Test accuracy on the heterogeneous masks: SparseOpt differs from the baseline by {100 * accuracy.mean:+z.2f} points"
        + (
            f" (95% interval {100 * accuracy.low:+z.2f} to {100 * accuracy.high:+z.2f}); "
            if len(accuracy.differences) > 1
            else "; "
        )
        + (
            "the seeds support a difference."
            if accuracy.supported
            else "the seeds support no difference, and none is claimed."
        ),
    ]


def _verdict(comparison: Comparison) -> str:
    """What the seeds say about the mean training loss, and nothing beyond it."""
    n = len(comparison.differences)
    if n < 2:
        return f"the mean training loss differs from the baseline's by {comparison.mean:+.1%}, with one seed: nothing is claimed."
    interval = f"95% interval {comparison.low:+.1%} to {comparison.high:+.1%}"
    if not comparison.supported:
        return (
            f"the mean training loss differs from the baseline's by {comparison.mean:+.1%} ({interval}): no difference that the "
            f"{n} seeds support."
        )
    word, count = (
        ("lower", comparison.negative) if comparison.mean < 0 else ("higher", n - comparison.negative)
    )
    size = f"{abs(comparison.mean):.1%} {word}"
    return (
        f"the mean training loss is {size} than the baseline's ({interval}; {word} in {count} of {n} seeds)."
    )


def _table(outcomes: TrainingResults, comparisons: Mapping[tuple[str, str], Comparison]) -> Table:
    rows = []
    for masks in MASKS:
        for name in CORRECTIONS:
            runs = outcomes[masks, name]
            difference = ""
            if name in COMPARED:
                difference = comparisons[masks, name].told("+z.1%")
            accuracy = 100 * np.array(_accuracies(runs))
            rows.append(
                (
                    masks,
                    name,
                    f"{np.mean(_mean_losses(runs)):.4f}",
                    difference,
                    f"{accuracy.mean():.1f} ± {accuracy.std(ddof=1):.1f}"
                    if len(runs) > 1
                    else f"{accuracy.mean():.1f}",
                )
            )
    columns = ("masks", "training", "mean train loss", "against baseline (95%)", "test accuracy (%)")
    return Table(columns, rows, labels=2)
