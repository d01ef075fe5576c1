"""The invariant sets of gradient flow and HAM flow: why one of them is a trap for the sign of `a`.

From the balanced start a^2 = gamma^2 + beta^2 gradient flow stays on a cone whose two halves meet only in the origin, where it
is singular; HAM flow stays on a surface with a neck, through which `a` can change its sign. Trajectories of discrete descent,
drawn on top, lie on the sets up to the drift of their step size.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparseopt.analysis.invariants import invariant, norm_radius
from sparseopt.analysis.student_teacher import Descent, train
from sparseopt.lab.analyses.analysis import Analysis, Result, Track
from sparseopt.lab.analyses.one_neuron import RECORDS, StudentSettings, draw_student, draw_task, relevant_mask
from sparseopt.lab.errors import require
from sparseopt.lab.show.colors import COLORS, INK
from sparseopt.lab.show.figures import THEORY, panels, style
from sparseopt.lab.show.table import Table

FLOWS = {"gradient flow": 0, "HAM flow": 1}


@dataclass(frozen=True)
class BalanceSettings(StudentSettings):
    """Invariant sets, and students that move along them."""

    seeds: int = 12
    """Students whose trajectories are drawn."""
    rate: float = 0.01
    """Learning rate of the students."""
    extent: float = 2.0
    """Largest |a| drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("rate", "extent"):
            require(getattr(self, option) > 0, option, getattr(self, option), "greater than 0")


def measure(settings: BalanceSettings, track: Track) -> Result:
    a = torch.linspace(-settings.extent, settings.extent, 401, dtype=torch.float64)
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    flows = {}
    for flow in track(list(FLOWS), "flows"):
        alpha = settings.alpha if FLOWS[flow] else 0.0
        level = float(invariant(-one, one, zero, alpha))
        radius = norm_radius(a, alpha, level)
        neck = float(norm_radius(zero, alpha, level))
        flows[flow] = {"radius": radius.tolist(), "level": level, "neck": neck} | _students(settings, alpha)
    return {"a": a.tolist(), "alpha": settings.alpha, "rate": settings.rate, "flows": flows}


def _students(settings: BalanceSettings, alpha: float) -> dict[str, Any]:
    iterations = round(settings.time / settings.rate)
    mask = relevant_mask(settings).unsqueeze(0)
    trajectory = train(
        draw_student(settings, settings.seeds, 1),
        mask,
        draw_task(settings, settings.seeds),
        Descent(settings.rate, iterations, torch.ones(1, dtype=torch.float64), alpha),
        record_every=max(iterations // RECORDS, 1),
    )
    series = {name: getattr(trajectory, name).squeeze(2) for name in ("a", "gamma", "beta")}
    conserved = invariant(series["a"], series["gamma"], series["beta"], alpha)
    return {
        "students": {name: values.T.tolist() for name, values in series.items()},
        "largest_drift": float((conserved - conserved[0]).abs().max()),
        "flipped": int((series["a"][-1] > 0).sum()),
    }


def draw(result: Result) -> Figure:
    with style():
        figure, axes = panels(3, width=3.7, height=3.4)
        _draw_plane(axes[0], result)
        for position, (flow, series) in enumerate(FLOWS.items(), start=2):
            axes[position - 1].remove()
            space = figure.add_subplot(1, 3, position, projection="3d")
            _draw_space(space, result, flow, COLORS[series])
    return figure


def _draw_plane(axis: Axes, result: Result) -> None:
    """beta = 0: the sets in (a, gamma); the students' gamma is sqrt(gamma^2 + beta^2), with gamma's sign."""
    a = np.array(result["a"])
    for flow, series in FLOWS.items():
        data = result["flows"][flow]
        radius = np.array(data["radius"])
        line: dict[str, Any] = THEORY | {"color": COLORS[series]}
        label = f"{flow}, $\\alpha={result['alpha']:g}$" if series else flow
        axis.plot(a, radius, label=label, **line)
        axis.plot(a, -radius, **line)
        for values, gamma, beta in zip(*data["students"].values(), strict=True):
            turned = np.copysign(np.hypot(gamma, beta), gamma)
            axis.plot(values, turned, color=COLORS[series], lw=0.8, alpha=0.55)
    axis.plot(-1, 1, "o", color=INK, ms=5)
    axis.annotate(
        "balanced start",
        (-1, 1),
        (-1.9, 0.45),
        fontsize=9,
        arrowprops={"arrowstyle": "-", "lw": 0.6, "color": INK},
    )
    axis.set(title=r"$\beta=0$: the sets in $(a,\gamma)$", xlabel="outer weight $a$", ylim=(-2, 2.7))
    axis.set_ylabel(r"$\gamma$ (students: $\pm\sqrt{\gamma^2+\beta^2}$)")
    axis.legend(loc="upper center")


def _draw_space(axis: Any, result: Result, flow: str, color: str) -> None:
    data = result["flows"][flow]
    a, radius = np.array(result["a"])[::10], np.array(data["radius"])[::10]
    angle = np.linspace(0, 2 * np.pi, 49)
    mesh = np.broadcast_arrays(a[:, None], radius[:, None] * np.cos(angle), radius[:, None] * np.sin(angle))
    axis.plot_surface(*mesh, color=color, alpha=0.22, linewidth=0, antialiased=True, shade=False)
    axis.plot_wireframe(*mesh, color=color, rcount=9, ccount=9, linewidth=0.5, alpha=0.6)
    for values, gamma, beta in zip(*data["students"].values(), strict=True):
        axis.plot(values, gamma, beta, color=INK, lw=0.9, alpha=0.8)
    axis.set(
        title=f"Students (black) on the set of {flow}", xlabel="$a$", ylabel=r"$\gamma$", zlabel=r"$\beta$"
    )
    axis.view_init(elev=18, azim=-62)
    axis.set_box_aspect((1.25, 1, 1), zoom=0.92)
    for direction in (axis.xaxis, axis.yaxis, axis.zaxis):
        direction.set_pane_color((1, 1, 1, 0))
        direction.set_ticks([-1, 0, 1])


def table(result: Result) -> Table:
    rows = [
        (flow, f"{data['level']:+.3f}", f"{data['neck']:.3f}", f"{data['flipped']}/{len(data['students']['a'])}",
         f"{data['largest_drift']:.1e}")
        for flow, data in result["flows"].items()
    ]  # fmt: skip
    return Table(
        ("flow", "invariant at the balanced start", "radius at a = 0", "students that flip", "largest drift"),
        rows,
        [f"Students: learning rate {result['rate']:g}, HAM with alpha = {result['alpha']:g}."],
    )


ANALYSIS = Analysis("the invariant sets of gradient flow and HAM flow", BalanceSettings, measure, draw, table)
