"""`sparseopt flops`: what a recipe costs, dense and sparse, counted as the RigL paper counts."""

import dataclasses
import math
from typing import Annotated, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

import sparseopt as so
from sparseopt.analysis.flops import Flops, at_densities
from sparseopt.lab.cli.command import run
from sparseopt.lab.cli.recipe import recipe_named
from sparseopt.lab.config.recipes import RECIPES, Config, MethodName
from sparseopt.lab.errors import UserError
from sparseopt.lab.show.terminal import Terminal
from sparseopt.lab.training.cost import DATA, dense_flops, sparse_shapes
from sparseopt.lab.training.methods import build_method

PROG = "sparseopt flops"
SPARSITIES = (0.8, 0.9, 0.95, 0.98)
UNIFORM: tuple[MethodName, ...] = ("nm", "srste", "annealed")
"""Methods that give all layers the same density."""


def main(argv: list[str]) -> int:
    """Print the cost of a recipe."""
    return run(PROG, flops, argv)


def flops(
    recipe: Annotated[str, tyro.conf.Positional],
    sparsity: tuple[float, ...] | None = None,
    distribution: Literal["erk", "er", "uniform"] | None = None,
    method: MethodName | None = None,
    method_options: tuple[str, ...] = (),
    every: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    width: float | None = None,
) -> None:
    """Count the floating-point operations of a recipe, dense and sparse; needs no data.

    FLOPs of the forward pass of one image (or text) and of the whole training, a multiplication and an addition being two;
    beside each stands the cost relative to dense. What is not given is the recipe's own.

    Args:
        recipe: Name of a recipe of `sparseopt train`.
        sparsity: One or several; a row each. None: 0.8 0.9 0.95 0.98, and what n:m methods have.
        distribution: How the sparsity is shared among the layers; methods that give all layers the same density have no other.
        method: How connections move; each is counted as its paper counts it.
        method_options: Settings of the method, as in `sparseopt train`: soft=True.
        every: Steps between two updates of the masks.
        epochs: Passes over the training images.
        batch_size: Images a step.
        width: Multiplier of all hidden channels.
    """
    chosen = {
        "distribution": distribution,
        "method": method,
        "every": every,
        "epochs": epochs,
        "batch_size": batch_size,
        "width": width,
    }
    options = {name: value for name, value in chosen.items() if value is not None}
    recipe_settings = dataclasses.replace(
        RECIPES[recipe_named(recipe)], warmup_epochs=0
    )  # which costs what others do
    usual = dataclasses.replace(recipe_settings, method_options=method_options, **options)
    if usual.method in UNIFORM:
        if distribution not in (None, "uniform"):
            raise UserError(
                f"--method {usual.method} gives all layers the same density, got --distribution {distribution}"
            )
        usual = dataclasses.replace(usual, distribution="uniform")
    values = sparsity if sparsity is not None else (0.5,) if usual.method in ("nm", "srste") else SPARSITIES
    configs = [dataclasses.replace(usual, sparsity=value) for value in values]
    if not configs:
        raise UserError("--sparsity needs at least one number, such as 0.9")
    Terminal().print(_table(recipe, configs), soft_wrap=True)


def _table(recipe: str, configs: list[Config]) -> Table:
    usual, facts = configs[0], DATA[configs[0].data]
    dense, shapes = dense_flops(usual), sparse_shapes(usual)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    images = usual.epochs * facts.images
    samples = "texts" if usual.data == "text" else "images"
    table = _empty_table(
        f"{recipe}: {usual.distribution}, {usual.method}, {usual.epochs} epochs of {facts.images:,} {samples}"
    )
    table.add_row("dense", *_cells(sizes, at_densities(dense, {}), 1.0, images))
    for config in configs if usual.method != "dense" else ():
        active = _active(shapes, config)
        cost = at_densities(dense, {name: count / sizes[name] for name, count in active.items()})
        method = _method(config, config.epochs * (facts.images // config.batch_size))
        table.add_row(f"{config.sparsity:g}", *_cells(active, cost, cost.training(method), images))
    return table


def _empty_table(title: str) -> Table:
    table = Table("sparsity", title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in ("active weights", "FLOPs, forward", "of dense", "FLOPs, training", "of dense"):
        table.add_column(heading, justify="right")
    return table


def _method(config: Config, total_steps: int) -> so.Method:
    try:
        return build_method(config, total_steps)
    except ValueError as error:
        raise UserError(str(error)) from error


def _active(shapes: dict[str, tuple[int, ...]], config: Config) -> dict[str, int]:
    try:
        return so.topology.active_counts(shapes, config.sparsity, config.distribution)
    except ValueError as error:  # the library's, which names the option and the remedy
        raise UserError(str(error)) from error


def _cells(active: dict[str, int], cost: Flops, training: float, images: int) -> tuple[str, ...]:
    """One forward pass and one whole run: in operations, and relative to dense."""
    run = 3 * cost.dense * images * training
    return (
        f"{sum(active.values()):,}",
        f"{cost.sparse:.2e}",
        f"{cost.inference:.3f}x",
        f"{run:.2e}",
        f"{training:.3f}x",
    )
