"""Two students of one teacher: a neuron dense on the wrong inputs, and a sparse one on the right ones.

Which of the two ends up explaining the teacher? Scaling slows the sparse neuron's incoming weights down, and so changes the race.
One picture of one seed would show anything; what counts is the share of seeds in which the wrong neuron is turned off.
"""

import itertools
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sparseopt.analysis.student_teacher import Descent, Trajectory, train
from sparseopt.lab.analyses.analysis import Analysis, Result, Track
from sparseopt.lab.analyses.one_neuron import (
    CONVERGED,
    RECORDS,
    StudentSettings,
    draw_student,
    draw_task,
    drift,
    relevant_mask,
)
from sparseopt.lab.errors import require
from sparseopt.lab.show.colors import COLORS, MARKERS
from sparseopt.lab.show.figures import panels, style
from sparseopt.lab.show.table import Table
from sparseopt.lab.show.words import counted

OFF = 0.1
DENSE, SPARSE = 0, 1
SCALINGS = {"none": "no scaling", "D": "$D$", "normalised": "$D$ normalised"}
SHOWN_SEEDS = 40


@dataclass(frozen=True)
class TwoNeuronsSettings(StudentSettings):
    """Two masked student neurons."""

    seeds: int = 200
    """Runs: teacher, samples and initial weights are drawn anew for each."""
    rate: float = 0.1
    """Learning rate."""
    scales: tuple[float, ...] = (10**-0.5, 1.0)
    """Standard deviations of the students' initial weights; the course of the first is drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rate > 0, "rate", self.rate, "greater than 0")
        positive = bool(self.scales) and min(self.scales) > 0
        require(positive, "scales", self.scales, "one or more numbers greater than 0")


def measure(settings: TwoNeuronsSettings, track: Track) -> Result:
    student, task = draw_student(settings, settings.seeds, 2), draw_task(settings, settings.seeds)
    relevant = relevant_mask(settings)
    mask = torch.stack([1 - relevant, relevant])
    iterations = round(settings.time / settings.rate)
    runs = []
    variants = list(itertools.product(settings.scales, (0.0, settings.alpha), SCALINGS))
    for scale, alpha, scaling in track(variants, "students"):
        descent = Descent(settings.rate, iterations, _factors(mask, scaling), alpha)
        start = student._replace(w=student.w * scale)
        trajectory = train(start, mask, task, descent, record_every=max(iterations // RECORDS, 1))
        key = {"scale": scale, "descent": "HAM" if alpha else "GD", "scaling": scaling}
        runs.append(key | _summary(trajectory, descent))
    return {"runs": runs, "seeds": settings.seeds}


def _factors(mask: Tensor, scaling: str) -> Tensor:
    density = mask.mean(dim=1)
    if scaling == "none":
        return torch.ones_like(density)
    return (density / (density.mean() if scaling == "normalised" else 1)).sqrt()


def _summary(trajectory: Trajectory, descent: Descent) -> dict[str, Any]:
    small = trajectory.a[:, :, DENSE].abs() < OFF
    off = (
        small.flip(0).cummin(dim=0).values.flip(0)
    )  # for good: a neuron on its way to the other sign does not count
    return {
        "time": (trajectory.iteration.double() * descent.lr).tolist(),
        "off": off.double().mean(dim=1).tolist(),
        "turned_off": int(off[-1].sum()),
        "converged": int((trajectory.loss[-1] < CONVERGED).sum()),
        "median_drift": float(drift(trajectory, descent.alpha).amax(dim=0).median()),
        "a_dense": trajectory.a[:, :SHOWN_SEEDS, DENSE].T.tolist(),
        "a_sparse": trajectory.a[:, :SHOWN_SEEDS, SPARSE].T.tolist(),
    }


def share_interval(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for a share: unlike the normal one it stays within 0 and 1, and is right for small counts."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = count / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2)) / (1 + z**2 / total)
    return centre - half, centre + half


def draw(result: Result) -> Figure:
    scale = result["runs"][0]["scale"]
    runs = {(run["descent"], run["scaling"]): run for run in result["runs"] if run["scale"] == scale}
    with style():
        figure, (plain, scaled, shares) = panels(3)
        _draw_seeds(plain, runs["HAM", "none"])
        shown = len(runs["HAM", "none"]["a_dense"])
        plain.set_title(f"HAM, no scaling: {counted(shown, 'seed')}")
        plain.legend(loc="upper left", fontsize=8.5)
        _draw_seeds(scaled, runs["HAM", "D"])
        scaled.set_title(f"HAM with $D$: the same {counted(shown, 'seed')}")
        _draw_shares(shares, runs, result["seeds"])
    return figure


def _draw_seeds(axis: Axes, run: dict[str, Any]) -> None:
    for key, color, label in (
        ("a_dense", COLORS[1], "dense, wrong inputs"),
        ("a_sparse", COLORS[0], "sparse, right inputs"),
    ):
        for seed, course in enumerate(run[key]):
            axis.plot(run["time"], course, color=color, lw=0.8, alpha=0.45, label=None if seed else label)
    axis.set(xlabel="time (learning rate x iterations)", ylabel="outer weight $a$", ylim=(-1.7, 3.1))


def _draw_shares(axis: Axes, runs: dict[tuple[str, str], dict[str, Any]], seeds: int) -> None:
    lines = {"none": "-", "D": "--", "normalised": ":"}
    for (descent, scaling), run in runs.items():
        color = COLORS[2] if descent == "HAM" else COLORS[7]
        axis.plot(
            run["time"], run["off"], color=color, ls=lines[scaling], label=f"{descent}, {SCALINGS[scaling]}"
        )
    time = runs["HAM", "none"]["time"][-1]
    for index, scaling in enumerate(SCALINGS):
        at, share = time * (1.04 + 0.05 * index), runs["HAM", scaling]["turned_off"] / seeds
        low, high = share_interval(runs["HAM", scaling]["turned_off"], seeds)
        bar = [[share - low], [high - share]]
        axis.errorbar(at, share, bar, color=COLORS[2], fmt=MARKERS[index], ms=4, capsize=2.5, lw=1)
    axis.set(xlabel="time (bars: 95% intervals)", ylabel=f"share of seeds with $|a_{{dense}}| < {OFF}$")
    axis.set(title=f"Wrong neuron off for good, {counted(seeds, 'seed')}", ylim=(-0.02, 1))
    axis.legend(loc="upper left", ncols=2, fontsize=8)


def table(result: Result) -> Table:
    seeds = result["seeds"]
    rows = []
    for run in result["runs"]:
        low, high = share_interval(run["turned_off"], seeds)
        share = f"{run['turned_off']}/{seeds} ({low:.0%} to {high:.0%})"
        scaling = SCALINGS[run["scaling"]].replace("$", "")
        converged = f"{run['converged']}/{seeds}"
        rows.append(
            (f"{run['scale']:.2f}", run["descent"], scaling, share, converged, f"{run['median_drift']:.1e}")
        )
    columns = (
        "init std",
        "descent",
        "scaling",
        "wrong neuron off (95% interval)",
        "converged",
        "median drift",
    )
    return Table(columns, rows, _notes(result), labels=3)


def _notes(result: Result) -> list[str]:
    notes = ["Both students start with a = -1, the teacher has a = +1."]
    for scale in sorted({run["scale"] for run in result["runs"]}):
        off = {
            r["scaling"]: r["turned_off"]
            for r in result["runs"]
            if r["scale"] == scale and r["descent"] == "HAM"
        }
        notes.append(
            f"HAM, std {scale:.2f}: scaling with D turns the wrong neuron off in {off['D']} instead of {off['none']} of "
            f"{result['seeds']} seeds, normalised in {off['normalised']}."
        )
    gd = max(run["turned_off"] for run in result["runs"] if run["descent"] == "GD")
    notes.append(
        f"Gradient descent turns it off in at most {gd} of {result['seeds']}: `a` can shrink, but not pass zero."
    )
    return notes


ANALYSIS = Analysis(
    "a dense wrong and a sparse right student neuron", TwoNeuronsSettings, measure, draw, table
)
