"""Act 4, what you get: accuracy, exploration, size and time of dense and sparse training."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from sparseopt.lab.demo.act import Act
from sparseopt.lab.demo.jobs import TrainingResult
from sparseopt.lab.demo.plan import METHODS, SPARSITIES, DemoSettings
from sparseopt.lab.show.colors import COLORS, MARKERS
from sparseopt.lab.show.figures import panels, style
from sparseopt.lab.show.table import Table
from sparseopt.lab.show.words import counted

TrainingResults = Mapping[tuple[str, ...], Sequence[TrainingResult]]
HAM = ("plain", "with HAM")
DENSE = ("dense", "0", "plain")


def results_act(outcomes: TrainingResults, settings: DemoSettings, why_not: str | None) -> Act:
    """From the trainings of dense, SET and RigL, plain and with HAM; `why_not` says why no kernels ran, if so."""
    ran = "on the sparse kernels" if why_not is None else "with masks over dense kernels"
    return Act(
        number=4,
        name="results",
        title="What you get",
        figure=_draw(outcomes),
        caption=(
            f"Test accuracy of a 784-{'-'.join(map(str, settings.hidden))}-10 network after {counted(settings.epochs, 'epoch')} "
            "on 4,000 digits, SET with the skew correction, RigL without, gradients renormalised to norm 1; mean and standard "
            f"deviation over {counted(settings.table_seeds, 'seed')}. Bytes: the active weights in single precision, for sparse "
            "layers also one bit a weight for the mask. Seconds: one training in one thread (median), sparse ones "
            f"{ran}, while others trained beside it."
        ),
        sentences=_sentences(outcomes, why_not),
        table=_table(outcomes),
    )


def _percent(outcomes: Sequence[TrainingResult]) -> tuple[float, float]:
    """Mean and standard deviation of the test accuracy in percent."""
    values = 100 * np.array([run.result["test_accuracy"] for run in outcomes])
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _mean(outcomes: Sequence[TrainingResult], key: str) -> float:
    return float(np.mean([run.result[key] for run in outcomes]))


def _seconds(outcomes: Sequence[TrainingResult]) -> float:
    """The median: another program may have held one of them up."""
    return float(np.median([run.result["seconds"] for run in outcomes]))


def _draw(outcomes: TrainingResults) -> Figure:
    at = np.arange(len(SPARSITIES))
    with style():
        figure, axes = panels(2, width=4.6, height=3.1, sharey=True)
        for axis, ham in zip(axes, HAM, strict=True):
            mean, spread = _percent(outcomes["dense", "0", ham])
            axis.axhspan(mean - spread, mean + spread, color=COLORS[7], alpha=0.2, lw=0)
            axis.axhline(mean, color=COLORS[7], lw=1.2, label="dense")
            for series, method in enumerate(METHODS):
                means, spreads = zip(
                    *(_percent(outcomes[method, f"{s:g}", ham]) for s in SPARSITIES), strict=True
                )
                axis.errorbar(
                    at + 0.06 * (2 * series - 1),
                    means,
                    spreads,
                    color=COLORS[series],
                    marker=MARKERS[series],
                    capsize=3,
                    label=method,
                )
            axis.set_xticks(at, [f"{100 * s:g}" for s in SPARSITIES])
            axis.set(title="Plain" if ham == "plain" else "With HAM", xlabel="sparsity (%)")
        axes[0].set_ylabel("test accuracy (%)")
        axes[0].legend(loc="lower left")
    return figure


def _sentences(outcomes: TrainingResults, why_not: str | None) -> list[str]:
    dense, _ = _percent(outcomes[DENSE])
    sparsest = f"{SPARSITIES[-1]:g}"
    best = max(
        (_percent(outcomes[method, sparsest, ham])[0], method, ham) for method in METHODS for ham in HAM
    )
    share = _mean(outcomes["SET", sparsest, "plain"], "active_weights") / _mean(
        outcomes[DENSE], "active_weights"
    )
    explored = {m: _mean(outcomes[m, "0.95", "plain"], "itop_rate") for m in METHODS}
    gains = [
        _percent(outcomes[method, f"{s:g}", "with HAM"])[0] - _percent(outcomes[method, f"{s:g}", "plain"])[0]
        for method in METHODS
        for s in SPARSITIES
    ]
    dense_seconds, sparse_seconds = _seconds(outcomes[DENSE]), _seconds(outcomes["RigL", "0.95", "plain"])
    kernels = "on the sparse kernels" if why_not is None else f"without sparse kernels ({why_not})"
    return [
        f"The dense network reaches {dense:.1f}%. With {share:.0%} of its weights the best sparse one, {best[1]} {best[2]}, "
        f"reaches {best[0]:.1f}%.",
        f"Training took {dense_seconds:.1f} s dense and {sparse_seconds:.1f} s with RigL at 95% {kernels}; this "
        "network is small, act 1 times a larger one.",
        f"At 95% sparsity SET had {explored['SET']:.0%} and RigL {explored['RigL']:.0%} of all weights active at some time.",
        f"HAM changes the mean accuracy of a sparse row by {min(gains):+.1f} to {max(gains):+.1f} points; with so few seeds only "
        "differences well above the standard deviations in the table mean anything.",
    ]


def _table(outcomes: TrainingResults) -> Table:
    rows = []
    for (method, sparsity, ham), runs in outcomes.items():
        mean, spread = _percent(runs)
        rows.append(
            (
                method,
                f"{100 * float(sparsity):g}%",
                "yes" if ham == "with HAM" else "no",
                f"{mean:.1f} ± {spread:.1f}" if len(runs) > 1 else f"{mean:.1f}",
                "-" if method == "dense" else f"{_mean(runs, 'itop_rate'):.0%}",
                f"{_mean(runs, 'active_weights'):,.0f}",
                f"{stored_bytes(runs[0].result, sparse=method != 'dense') / 1000:,.0f} kB",
                f"{_seconds(runs):.1f}",
            )
        )
    columns = ("method", "sparsity", "HAM", "test accuracy (%)", "ITOP", "active weights", "bytes", "seconds")
    return Table(columns, sorted(rows, key=lambda row: (row[0] != "dense", row[0], row[1], row[2])), labels=3)


def stored_bytes(result: Mapping[str, float], *, sparse: bool) -> float:
    """What the weights need on disk: four bytes an active one, and one bit each for the mask."""
    return 4 * result["active_weights"] + (result["weights"] / 8 if sparse else 0)
