"""Final accuracy against the total number of epochs, one model a point."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from sparseopt.lab.config.recipes import MethodName
from sparseopt.lab.report import Drawing
from sparseopt.lab.reproduce.drawings.drawn import SPREAD, Drawings, arms_drawn, cells_drawn
from sparseopt.lab.reproduce.grid import METHODS, GridRow
from sparseopt.lab.reproduce.outcomes import Outcomes, accuracy
from sparseopt.lab.reproduce.tables.beside import beside
from sparseopt.lab.show.colors import COLORS, LINES, MARKERS
from sparseopt.lab.show.figures import THEORY, legend_below, panels, style


def budgets(outcomes: Outcomes, method: MethodName) -> Drawings:
    """Final test accuracy against the total number of epochs, one model a point; of one number there is nothing to see."""
    epochs = [total for total in outcomes.grid.scale.epochs if any(cells_drawn(outcomes, method, total))]
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
            for series, arm in enumerate(arms_drawn(outcomes)):
                _draw_budget(axis, outcomes, GridRow(sparsity, method, arm), series)
            axis.set(title=f"Sparsity {sparsity:g}", xlabel="total epochs", ylabel="test accuracy (%)")
            axis.set_xscale("log")
            axis.set_xticks(epochs, minor=False)
            axis.set_xticks([], minor=True)
            axis.xaxis.set_major_formatter(ScalarFormatter())
        legend_below(figure, axes)
    return figure


def _draw_budget(axis: Axes, outcomes: Outcomes, row: GridRow, series: int) -> None:
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
