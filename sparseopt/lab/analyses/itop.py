"""How much of the network was ever active: the ITOP rate over training, from a list of runs.

The paper compares RigL growing by original and by corrected gradients, at several sparsities. Runs that differ in nothing but
their seed become one line with a band.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sparseopt.lab.analyses.analysis import Analysis, Result, Track
from sparseopt.lab.analyses.bn_ratio import centre_and_spread
from sparseopt.lab.config.controls import correction
from sparseopt.lab.config.differences import described, differing
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.catalogue import Run, find_runs
from sparseopt.lab.runs.groups import Group, grouped
from sparseopt.lab.show.colors import COLORS, LINES
from sparseopt.lab.show.figures import band, legend_below, panels, style
from sparseopt.lab.show.statistics import over_seeds
from sparseopt.lab.show.table import Table
from sparseopt.lab.training.methods import build_method
from sparseopt.optim.correction import in_force

SPOKEN = ("sparsity", "method", "correction", "grow_from", "ham")
"""The settings that a panel, or the words of `_method`, tell already."""


@dataclass(frozen=True)
class ItopSettings:
    """The runs to be compared."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, or folders that contain runs."""


def measure(settings: ItopSettings, track: Track) -> Result:
    found = [run for folder in track(settings.runs, "runs") for run in find_runs(folder)]
    sparse = [run for run in found if run.config.method != "dense" and run.rows]
    if not sparse:
        raise UserError(
            f"no sparse run with metrics in {', '.join(map(str, settings.runs))}; sparseopt train makes one"
        )
    return compared(sparse)


def compared(sparse: Sequence[Run]) -> Result:
    """The curves of runs that have metrics."""
    groups = grouped(sparse)
    names = [name for name in differing([group.settings for group in groups]) if name not in SPOKEN]
    curves = [_curve(group, _label(group, names)) for group in groups]
    return {"curves": sorted(curves, key=lambda curve: (curve["sparsity"], curve["label"]))}


def _label(group: Group, names: Sequence[str]) -> str:
    """What is compared: how connections grow and how weights move, and whatever else the groups differ in."""
    rest = described({name: group.settings[name] for name in names if name in group.settings})
    return f"{_method(group.runs[0])}{rest and f', {rest}'}"


def _method(run: Run) -> str:
    config = run.config
    method = {"rigl": "RigL", "set": "SET", "static": "static"}.get(config.method, config.method)
    plain = in_force(correction(config.correction), build_method(config, total_steps=1000)) == "none"
    corrected = "no correction" if plain else f"{config.correction} correction"
    grown = f", grown by {config.grow_from} gradients" if config.method == "rigl" and not plain else ""
    return f"{method}, {corrected}{grown}" + (", HAM" if config.ham else "")


def _curve(group: Group, label: str) -> dict[str, Any]:
    """One line: the epochs that all seeds have reached."""
    runs, config = group.runs, group.runs[0].config
    sparsity, start = config.sparsity, build_method(config, total_steps=1000).starts_at()
    epochs = min(len(run.rows) for run in runs)
    return {
        "sparsity": sparsity,
        "label": label,
        "runs": [str(run.path) for run in runs],
        "epoch": [0] + [row["epoch"] for row in runs[0].rows[:epochs]],
        "itop": [
            [1 - (sparsity if start is None else start)] + [row["itop_rate"] for row in run.rows[:epochs]]
            for run in runs
        ],
    }


def draw(result: Result) -> Figure:
    sparsities = sorted({curve["sparsity"] for curve in result["curves"]})
    labels = sorted({curve["label"] for curve in result["curves"]})
    with style():
        figure, axes = panels(len(sparsities), width=3.6, height=3.2)
        for axis, sparsity in zip(axes, sparsities, strict=True):
            for curve in (curve for curve in result["curves"] if curve["sparsity"] == sparsity):
                mean, spread = centre_and_spread(curve["itop"])
                number = labels.index(curve["label"])
                line = LINES[number % len(LINES)]
                band(axis, curve["epoch"], mean, spread, series=number, label=curve["label"], linestyle=line)
            axis.axhline(1 - sparsity, color=COLORS[-1], lw=0.8)
            axis.set(
                title=f"Sparsity {sparsity:g}",
                xlabel="epoch",
                ylabel="ITOP rate (weights ever active)",
            )
            axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.set_ylim(bottom=0)
        legend_below(figure, axes, columns=2)
    return figure


def table(result: Result) -> Table:
    rows = [
        (
            f"{curve['sparsity']:g}",
            curve["label"],
            str(len(curve["runs"])),
            str(curve["epoch"][-1]),
            over_seeds([of_run[-1] for of_run in curve["itop"]], ".2%"),
        )
        for curve in result["curves"]
    ]
    return Table(
        ("sparsity", "runs of", "seeds", "epochs", "ITOP rate"),
        rows,
        ["The grey line is the density: a static mask."],
        labels=2,
    )


ANALYSIS = Analysis(
    "ITOP rate over training: sparseopt analyse itop RUN...", ItopSettings, measure, draw, table
)
