"""The methods side by side: what they reach, what they cost in operations and in time, and how they ran."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from statistics import fmean

import sparseopt as so
from sparseopt.analysis.flops import at_densities
from sparseopt.lab.config.recipes import MethodName
from sparseopt.lab.report.masks import last_densities
from sparseopt.lab.reproduce.grid import METHODS, Grid, GridRow
from sparseopt.lab.reproduce.layout import Best, LabelledTable
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes, accuracy, paired
from sparseopt.lab.reproduce.tables.accuracy import best_among, missing_notes, seeds_text, tuned_text
from sparseopt.lab.reproduce.tables.itop import rate_text
from sparseopt.lab.reproduce.tables.texts import NOTHING, against
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.show.statistics import LEVEL, compare
from sparseopt.lab.show.words import counted, duration
from sparseopt.lab.training.cost import DATA, dense_flops
from sparseopt.lab.training.methods import build_method

REFERENCE: MethodName = "rigl"
"""What the others are compared with."""

Cost = tuple[float, float]
"""FLOPs of inference and of training, relative to dense."""


def methods_table(outcomes: Outcomes) -> LabelledTable:
    """One row a method, in blocks of the same sparsity, length and correction."""
    grid = outcomes.grid
    blocks = product(grid.scale.sparsities, grid.scale.epochs, grid.arms)
    cells = [
        cell
        for sparsity, epochs, arm in blocks
        for method in grid.methods
        if (cell := outcomes.cells[GridRow(sparsity, method, arm), epochs]).runs
    ]
    return LabelledTable(
        "Methods",
        ("sparsity", "epochs", "training", "DST"),
        (
            *("test accuracy (%)", f"against {METHODS[REFERENCE]}", "ITOP rate (%)"),
            *("FLOPs, inference", "FLOPs, training", "time of a run", "sparse kernels"),
        ),
        [_row(outcomes, cell, cost) for cell, cost in zip(cells, costs(grid, cells), strict=True)],
        notes=[
            "After the last epoch, mean ± standard deviation over seeds; the best of a block in bold. Against "
            f"{METHODS[REFERENCE]}: paired by seed, with the {LEVEL:.0%} interval; improves or worsens only where that leaves "
            "0 out.",
            "FLOPs are relative to the dense network's, as the papers count them, at the densities that the layers have in the "
            "end. Time is wall time, whatever else the machine did. Sparse kernels: how many layers ran on them, dense "
            "ones between sparse ones included; "
            '"dense gradients" where the method reads those of all weights, which are then computed besides, at every step.',
            *missing_notes(outcomes),
        ],
    )


def _row(outcomes: Outcomes, cell: Cell, cost: Cost | None) -> tuple[str, ...]:
    text = seeds_text(cell) + tuned_text(outcomes, cell)
    reference = outcomes.cells.get((replace(cell.row, method=REFERENCE), cell.epochs))
    difference = None if reference is cell else paired(cell, reference, accuracy, compare)
    sparsity, method, training = cell.row.labels
    return (
        *(sparsity, f"{cell.epochs}", training, method),
        Best(text) if _is_best(outcomes, cell) else text,
        against(difference, "+z.2f", "higher"),
        rate_text(cell),
        *([NOTHING] * 2 if cost is None else (f"{each:.3f}" for each in cost)),
        duration(fmean(run.last["seconds"] for run in cell.runs.values())),
        ", ".join(dict.fromkeys(_kernels(run) for run in cell.runs.values())),
    )


def _is_best(outcomes: Outcomes, cell: Cell) -> bool:
    """Is it the best method of its block?"""
    methods = outcomes.grid.methods
    return best_among(cell, [outcomes.cells[replace(cell.row, method=each), cell.epochs] for each in methods])


def costs(grid: Grid, cells: Iterable[Cell]) -> list[Cost | None]:
    """FLOPs of inference and training of each cell, relative to dense; None where they cannot be counted."""
    recipe = replace(grid.target.recipe, width=grid.scale.width)
    dense = dense_flops(recipe) if recipe.data in DATA else None
    return [None if dense is None else _mean_cost(dense, cell) for cell in cells]


def _mean_cost(dense: Mapping[str, int], cell: Cell) -> Cost | None:
    found = [cost for run in cell.runs.values() if (cost := _run_cost(dense, run)) is not None]
    return (fmean(cost[0] for cost in found), fmean(cost[1] for cost in found)) if found else None


def _run_cost(dense: Mapping[str, int], run: Run) -> Cost | None:
    if run.config.method == "dense":
        return 1.0, 1.0
    densities = last_densities(run)
    if not densities or "step" not in run.last:
        return None
    method = build_method(run.config, run.last["step"])
    flops = at_densities(dense, densities)
    return flops.inference, flops.training(method)


def _kernels(run: Run) -> str:
    """How many of its sparse layers ran on the kernels."""
    layers = run.environment.get("on_kernels")
    if not layers:  # early records do not say which
        return NOTHING if layers is None and run.environment.get("accelerate") == "on" else "no"
    method = build_method(run.config, run.last["step"])
    of_all = not isinstance(method, so.TopKAST)  # which reads those of its backward set
    dense = of_all and all(method.needs_dense_grad(step) for step in (1, 2))
    return counted(len(layers), "layer") + (", dense gradients" if dense else "")
