"""One neuron learns from a teacher whose outer weight has the other sign: only HAM can follow.

The student sees exactly the two inputs that matter, but starts with a = -1 where the teacher has a = +1. Gradient descent
conserves a^2 - gamma^2 - beta^2, which is zero here, and so cannot carry `a` through zero; HAM conserves another quantity, and
can. The skew correction touches neither. (For a single neuron s_avg = s_1 and the normalised factor is 1: scaling here is D
alone.)
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sparseopt.analysis.invariants import invariant
from sparseopt.analysis.student_teacher import Descent, Neurons, Task, Trajectory, make_task, train
from sparseopt.lab.analyses.analysis import Analysis, Result, Track
from sparseopt.lab.errors import require, require_positive
from sparseopt.lab.show.colors import COLORS
from sparseopt.lab.show.figures import panels, style
from sparseopt.lab.show.table import Table
from sparseopt.topology import generator

RECORDS = 200
CONVERGED = 1e-3

VARIANTS = {"gd": "GD", "gd scaled": "GD + scaling", "ham": "HAM", "ham scaled": "HAM + scaling"}
SERIES = {"gd": (0, "-"), "gd scaled": (5, "--"), "ham": (1, "-"), "ham scaled": (4, "--")}


@dataclass(frozen=True)
class StudentSettings:
    """What students and their teacher have in common."""

    seeds: int = 60
    """Runs: teacher, samples and initial weights are drawn anew for each."""
    seed: int = 0
    """Decides all draws."""
    dimension: int = 10
    """Inputs of a neuron."""
    relevant: int = 2
    """Inputs that the teacher reads; the others are redundant."""
    samples: int = 200
    """Training samples, standard normal."""
    alpha: float = 4.0
    """Strength of HAM."""
    time: float = 100.0
    """Learning rate times iterations: 1000 iterations at 0.1, 10000 at 0.01."""

    def __post_init__(self) -> None:
        require_positive(self, "seeds", "relevant")
        require(self.samples >= 2, "samples", self.samples, "at least 2: BatchNorm needs a variance")
        require(
            self.dimension > self.relevant,
            "dimension",
            self.dimension,
            f"more than the {self.relevant} --relevant inputs",
        )
        require(self.alpha > 0, "alpha", self.alpha, "greater than 0")
        require(self.time > 0, "time", self.time, "greater than 0")


@dataclass(frozen=True)
class OneNeuronSettings(StudentSettings):
    """One masked student neuron."""

    rates: tuple[float, ...] = (0.01, 0.1)
    """Learning rates."""
    scales: tuple[float, ...] = (0.1, 10**-0.5, 1.0)
    """Standard deviations of the student's initial weights."""
    shown_scale: float = 10**-0.5
    """The one whose course over time is drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("rates", "scales"):
            values = getattr(self, option)
            require(bool(values) and min(values) > 0, option, values, "one or more numbers greater than 0")


def draw_task(settings: StudentSettings, runs: int) -> Task:
    """A teacher that reads the first inputs, and samples, for every run."""
    draw = generator(settings.seed, "teacher")
    teacher = torch.randn(runs, settings.dimension, generator=draw, dtype=torch.float64)
    teacher[:, settings.relevant :] = 0
    shape = runs, settings.samples, settings.dimension
    return make_task(teacher, torch.randn(shape, generator=draw, dtype=torch.float64))


def draw_student(settings: StudentSettings, runs: int, neurons: int) -> Neurons:
    """Balanced students, a = -1, gamma = 1, beta = 0, with standard normal incoming weights."""
    draw = generator(settings.seed, "student")
    weights = torch.randn(runs, neurons, settings.dimension, generator=draw, dtype=torch.float64)
    ones = torch.ones(runs, neurons, dtype=torch.float64)
    return Neurons(weights, -ones, ones, torch.zeros_like(ones))


def relevant_mask(settings: StudentSettings) -> Tensor:
    """1 for the inputs the teacher reads, 0 for the redundant ones."""
    return (torch.arange(settings.dimension) < settings.relevant).double()


def measure(settings: OneNeuronSettings, track: Track) -> Result:
    scales = sorted({*settings.scales, settings.shown_scale})
    student, task = _side_by_side(settings, scales)
    mask = relevant_mask(settings).unsqueeze(0)
    runs = []
    for rate, variant in track(list(itertools.product(settings.rates, VARIANTS)), "students"):
        descent = make_descent(settings, rate, variant, mask)
        trajectory = train(student, mask, task, descent, record_every=max(descent.iterations // RECORDS, 1))
        for index, scale in enumerate(scales):
            of_scale = _runs(trajectory, slice(index * settings.seeds, (index + 1) * settings.seeds))
            course = _course(of_scale, descent) if scale == settings.shown_scale else {}
            runs.append(
                {"rate": rate, "scale": scale, "variant": variant} | _outcome(of_scale, descent) | course
            )
    return {"runs": runs, "shown_scale": settings.shown_scale, "seeds": settings.seeds}


def _side_by_side(settings: OneNeuronSettings, scales: list[float]) -> tuple[Neurons, Task]:
    """All initial scales with the same seeds, one after the other along the axis of runs."""
    one, task = draw_student(settings, settings.seeds, 1), draw_task(settings, settings.seeds)
    students = [one._replace(w=one.w * scale) for scale in scales]
    repeated = Task(*(tensor.repeat(len(scales), *[1] * (tensor.dim() - 1)) for tensor in task))
    return Neurons(*(torch.cat(parameter) for parameter in zip(*students, strict=True))), repeated


def _runs(trajectory: Trajectory, chosen: slice) -> Trajectory:
    return Trajectory(trajectory.iteration, *(series[:, chosen] for series in trajectory[1:]))


def make_descent(settings: StudentSettings, rate: float, variant: str, mask: Tensor) -> Descent:
    """Descent for a variant's name: "ham" in it for HAM, "scaled" for D = sqrt(1 - s_k)."""
    density = mask.mean(dim=1)
    scale = density.sqrt() if "scaled" in variant else torch.ones_like(density)
    alpha = settings.alpha if "ham" in variant else 0.0
    return Descent(rate, round(settings.time / rate), scale, alpha)


def drift(trajectory: Trajectory, alpha: float) -> Tensor:
    """How far each neuron's invariant is from where it started (records, runs, neurons)."""
    conserved = invariant(trajectory.a, trajectory.gamma, trajectory.beta, alpha)
    return (conserved - conserved[0]).abs()


def _outcome(trajectory: Trajectory, descent: Descent) -> dict[str, Any]:
    converged = trajectory.loss[-1] < CONVERGED
    first = (trajectory.loss < CONVERGED).double().argmax(dim=0)
    iterations = trajectory.iteration[first[converged]].double()
    return {
        "flipped": int((trajectory.a[-1] > 0).sum()),
        "converged": int(converged.sum()),
        "median_iterations": float(iterations.median()) if len(iterations) else None,
        "median_drift": float(drift(trajectory, descent.alpha).amax(dim=0).median()),
    }


def _course(trajectory: Trajectory, descent: Descent) -> dict[str, Any]:
    return {
        "time": (trajectory.iteration.double() * descent.lr).tolist(),
        "loss": _quartiles(trajectory.loss),
        "positive": (trajectory.a > 0).double().mean(dim=(1, 2)).tolist(),
        "drift": _quartiles(drift(trajectory, descent.alpha).squeeze(2)),
    }


def _quartiles(values: Tensor) -> list[list[float]]:
    """25%, 50% and 75% over the runs, along the records."""
    return values.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=values.dtype), dim=1).tolist()


def draw(result: Result) -> Figure:
    rates = sorted({run["rate"] for run in result["runs"]})
    with style():
        figure, axes = panels(4, len(rates), width=3.3, height=2.6)
        for row, rate in enumerate(rates):
            runs = [run for run in result["runs"] if run["rate"] == rate]
            _draw_row(axes[4 * row : 4 * row + 4], runs, result)
            axes[4 * row].set_title(f"Loss, learning rate {rate:g}")
        axes[0].legend(loc="lower left", fontsize=8.5)
        figure.supxlabel(
            f"Lines: median of {result['seeds']} seeds and quartiles, initial std {result['shown_scale']:.2f}. "
            r"For one neuron the normalised factor is 1: scaling is $D=\sqrt{1-s_1}$ alone.",
            fontsize=9,
        )
    return figure


def _draw_row(axes: list[Axes], runs: list[dict[str, Any]], result: Result) -> None:
    loss, sign, drift, shares = axes
    for run in runs:
        if "time" in run:
            _draw_course(loss, run, "loss")
            _draw_course(drift, run, "drift")
            color, line = SERIES[run["variant"]]
            sign.plot(run["time"], run["positive"], color=COLORS[color], ls=line)
    loss.set(yscale="log", ylim=(1e-8, 2), ylabel="loss")
    sign.set(ylim=(-0.04, 1.04), title="Sign of $a$ found", ylabel="share of seeds with $a>0$")
    drift.set(yscale="log", title="Drift of the invariant", ylabel=r"$|I(t)-I(0)|$")
    for axis in (loss, sign, drift):
        axis.set_xlabel("time (learning rate x iterations)")
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xticks([0, 1, 10, 100], ["0", "1", "10", "100"])
        axis.set_xlim(0, max(max(run.get("time", [0])) for run in runs))
    _draw_shares(shares, runs, result["seeds"])


def _draw_course(axis: Axes, run: dict[str, Any], key: str) -> None:
    low, median, high = np.maximum(np.array(run[key]), 1e-12)
    color, line = SERIES[run["variant"]]
    start = 1 if key == "drift" else 0
    axis.plot(
        run["time"][start:], median[start:], color=COLORS[color], ls=line, label=VARIANTS[run["variant"]]
    )
    axis.fill_between(run["time"][start:], low[start:], high[start:], color=COLORS[color], alpha=0.12, lw=0)


def _draw_shares(axis: Axes, runs: list[dict[str, Any]], seeds: int) -> None:
    scales = sorted({run["scale"] for run in runs})
    for variant in VARIANTS:
        chosen = sorted((run for run in runs if run["variant"] == variant), key=lambda run: run["scale"])
        color, line = SERIES[variant]
        at = np.arange(len(scales))
        axis.plot(at, [run["flipped"] / seeds for run in chosen], "o", color=COLORS[color], ls=line, ms=4)
        axis.plot(
            at,
            [run["converged"] / seeds for run in chosen],
            "x",
            color=COLORS[color],
            ls=line,
            ms=4.5,
            lw=0.8,
        )
    axis.set_xticks(np.arange(len(scales)), [f"{scale:.2g}" for scale in scales])
    axis.set(
        ylim=(-0.04, 1.04),
        title="Flipped (o), converged (x)",
        xlabel="std of initial weights",
        ylabel="share of seeds",
    )


def table(result: Result) -> Table:
    seeds = result["seeds"]
    rows = [
        (
            f"{run['rate']:g}",
            f"{run['scale']:.2f}",
            VARIANTS[run["variant"]],
            f"{run['flipped']}/{seeds}",
            f"{run['converged']}/{seeds}",
            "-" if run["median_iterations"] is None else f"{run['median_iterations']:.0f}",
            f"{run['median_drift']:.1e}",
        )
        for run in result["runs"]
    ]
    columns = ("rate", "init std", "descent", "flipped", "converged", "median iterations", "median drift")
    return Table(columns, rows, _notes(result), labels=3)


def _notes(result: Result) -> list[str]:
    def total(variant: str, key: str) -> int:
        return sum(run[key] for run in result["runs"] if run["variant"].startswith(variant))

    runs = result["seeds"] * len(result["runs"]) // 2
    return [
        f"Gradient descent flipped the sign in {total('gd', 'flipped')} of {runs} runs, HAM in {total('ham', 'flipped')} of "
        f"{runs}; HAM converged (loss below {CONVERGED:g}) in {total('ham', 'converged')}.",
        _speed_note(result),
        "For a single neuron s_avg = s_1 and SparseOpt's factor is 1: what is called scaling here is D = sqrt(1 - s_1) alone.",
    ]


def _speed_note(result: Result) -> str:
    """At the largest rate, where does scaling make HAM converge in fewer iterations?"""
    rate = max(run["rate"] for run in result["runs"])
    medians = {
        (run["variant"], run["scale"]): run["median_iterations"]
        for run in result["runs"]
        if run["rate"] == rate
    }
    parts = [
        f"{medians['ham', scale]:.0f} -> {medians['ham scaled', scale]:.0f} (std {scale:.2g})"
        for scale in sorted({scale for _, scale in medians})
        if medians["ham", scale] is not None and medians["ham scaled", scale] is not None
    ]
    return f"Median iterations of HAM until convergence at rate {rate:g}, without -> with scaling: {', '.join(parts)}."


ANALYSIS = Analysis(
    "one student neuron with the wrong sign: GD, HAM, scaling", OneNeuronSettings, measure, draw, table
)
