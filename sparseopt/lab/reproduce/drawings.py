"""The figures of a target: what the paper draws, with the spread over seeds, and the paper's own figures where they fit."""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from sparseopt.lab.analyses import itop
from sparseopt.lab.analyses.analysis import quietly
from sparseopt.lab.analyses.bn_ratio import centre_and_spread
from sparseopt.lab.figures import COLORS, LINES, MARKERS, THEORY, band, panels, style
from sparseopt.lab.recipes import MethodName
from sparseopt.lab.report import Drawing
from sparseopt.lab.reproduce.grid import METHODS, Arm, Row
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes, accuracy
from sparseopt.lab.reproduce.tables import beside
from sparseopt.lab.reproduce.targets import Drawn

Drawings = dict[str, Drawing]
"""Figures by the name of their files."""

SPREAD = "bands and bars are one standard deviation over seeds"


def draw(outcomes: Outcomes) -> Drawings:
    """All figures of the target that there are runs for."""
    made: Drawings = {}
    for kind, method in product(outcomes.grid.target.drawn, outcomes.grid.target.methods):
        made |= DRAWN[kind](outcomes, method)
    return made


def curves(outcomes: Outcomes, method: MethodName) -> Drawings:
    """Train and test accuracy by epoch, one figure a number of epochs, one column a sparsity."""
    return {
        f"curves-{method}-{epochs}": Drawing(
            _draw_curves(outcomes, method, epochs),
            f"{METHODS[method]}, {epochs} epochs in all: train accuracy, then test accuracy, by epoch; {SPREAD}.",
        )
        for epochs in outcomes.grid.scale.epochs
        if any(_cells(outcomes, method, epochs))
    }


def _draw_curves(outcomes: Outcomes, method: MethodName, epochs: int) -> Figure:
    cells = list(_cells(outcomes, method, epochs))
    sparsities = list(dict.fromkeys(cell.row.sparsity for cell in cells))
    shape = (2, 1) if len(sparsities) == 1 else (len(sparsities), 2)
    with style():
        figure, axes = panels(*shape, width=3.6, height=2.6, sharex=True)
        for number, (metric, sparsity) in enumerate(product(("train_accuracy", "test_accuracy"), sparsities)):
            for cell in (cell for cell in cells if cell.row.sparsity == sparsity):
                _draw_curve(axes[number], cell, metric, _arms(outcomes).index(cell.row.arm))
            axes[number].set_title(f"Sparsity {sparsity:g}")
            axes[number].xaxis.set_major_locator(MaxNLocator(integer=True))
        for axis in axes[-shape[0] :]:
            axis.set_xlabel("epoch")
        axes[0].set_ylabel("train accuracy (%)")
        axes[len(sparsities)].set_ylabel("test accuracy (%)")
        _legend(figure, axes)
    return figure


def _draw_curve(axis: Axes, cell: Cell, metric: str, series: int) -> None:
    values = [[100 * row[metric] for row in run.rows] for run in cell.runs.values()]
    marker = "o" if cell.epochs == 1 else None  # a line of one point cannot be seen
    line = LINES[series % len(LINES)]
    mean, spread = centre_and_spread(values)
    epochs = list(range(1, cell.epochs + 1))
    band(
        *(axis, epochs, mean, spread),
        series=series,
        label=cell.row.arm.label,
        linestyle=line,
        marker=marker,
    )


def budgets(outcomes: Outcomes, method: MethodName) -> Drawings:
    """Final test accuracy against the total number of epochs, one model a point; of one number there is nothing to see."""
    epochs = [total for total in outcomes.grid.scale.epochs if any(_cells(outcomes, method, total))]
    if len(epochs) < 2:
        return {}
    caption = (
        f"{METHODS[method]}: test accuracy after the last epoch against the total number of epochs; {SPREAD}."
    )
    figures = (
        " Open markers: the paper's figures." if any(beside(outcomes.grid, e).figures for e in epochs) else ""
    )
    return {f"epochs-{method}": Drawing(_draw_budgets(outcomes, method, epochs), caption + figures)}


def _draw_budgets(outcomes: Outcomes, method: MethodName, epochs: list[int]) -> Figure:
    sparsities = [
        sparsity
        for sparsity in outcomes.grid.scale.sparsities
        if any(row.sparsity == sparsity and row.method == method for row in outcomes.rows)
    ]
    with style():
        figure, axes = panels(len(sparsities), width=3.6, height=3.1)
        for axis, sparsity in zip(axes, sparsities, strict=True):
            for series, arm in enumerate(_arms(outcomes)):
                _draw_budget(axis, outcomes, Row(sparsity, method, arm), series)
            axis.set(title=f"Sparsity {sparsity:g}", xlabel="total epochs", ylabel="test accuracy (%)")
            axis.set_xscale("log")
            axis.set_xticks(epochs, minor=False)
            axis.set_xticks([], minor=True)
            axis.xaxis.set_major_formatter(ScalarFormatter())
        _legend(figure, axes)
    return figure


def _draw_budget(axis: Axes, outcomes: Outcomes, row: Row, series: int) -> None:
    cells = [cell for e in sorted(outcomes.grid.scale.epochs) if (cell := outcomes.cells[row, e]).runs]
    if not cells:
        return
    color, marker = COLORS[series % len(COLORS)], MARKERS[series % len(MARKERS)]
    means, spreads = zip(*(cell.mean_and_std(accuracy) for cell in cells), strict=True)
    axis.errorbar(
        *([cell.epochs for cell in cells], means, [spread or 0 for spread in spreads]),
        color=color,
        marker=marker,
        linestyle=LINES[series % len(LINES)],
        capsize=3,
        label=row.arm.label,
    )
    paper = [figure for cell in cells if (figure := beside(outcomes.grid, cell.epochs).figures.get(row))]
    axis.plot(
        [figure.epochs for figure in paper],
        [figure.mean for figure in paper],
        color=color,
        marker=marker,
        markerfacecolor="none",
        linestyle=THEORY["linestyle"],
        linewidth=0.8,
    )


def itop_rates(outcomes: Outcomes, method: MethodName) -> Drawings:
    """ITOP rate by epoch, one figure a number of epochs."""
    made: Drawings = {}
    for epochs in outcomes.grid.scale.epochs:
        runs = [run for cell in _cells(outcomes, method, epochs) for run in cell.runs.values()]
        if runs:
            settings = itop.Settings(runs=tuple(run.path for run in runs))
            figure = itop.draw(itop.measure(settings, quietly))
            caption = (
                f"{METHODS[method]}, {epochs} epochs in all: share of the weights that were active at some time. "
                "The grey line is the density, where a static mask stays."
            )
            made[f"itop-{method}-{epochs}"] = Drawing(figure, caption)
    return made


DRAWN: dict[Drawn, Callable[[Outcomes, MethodName], Drawings]] = {
    "curves": curves,
    "budgets": budgets,
    "itop": itop_rates,
}


def _arms(outcomes: Outcomes) -> list[Arm]:
    """The arms that are drawn, in the order of the rows: their number decides their looks."""
    return list(dict.fromkeys(row.arm for row in outcomes.rows))


def _cells(outcomes: Outcomes, method: MethodName, epochs: int) -> Iterator[Cell]:
    """The cells of a method and a number of epochs that have a finished run."""
    for cell in outcomes.cells.values():
        if cell.runs and cell.row.method == method and cell.epochs == epochs:
            yield cell


def _legend(figure: Figure, axes: list[Axes]) -> None:
    """One legend for all panels, below them."""
    handles = {
        label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    columns = int(np.clip(len(handles), 1, 3))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
