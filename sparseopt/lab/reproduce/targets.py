"""Every table and figure of the paper's training experiments, as a named grid of runs; and a table of the field's methods.

A target says what the paper varied. A figure shows the runs of a table, all or some of them, so it costs nothing
once the table has been trained.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from sparseopt.lab.config.recipes import RECIPES, Config, MethodName

Drawn = Literal["curves", "budgets", "itop"]
"""Accuracy by epoch; final accuracy against the total number of epochs; ITOP rate by epoch."""

GrowFrom = Literal["original", "corrected"]


@dataclass(frozen=True)
class Target:
    """A table or figure: the recipe, what is varied, and what is drawn. A table of the numbers always comes with it."""

    name: str
    summary: str
    recipe: Config
    methods: tuple[MethodName, ...]
    epochs: tuple[int, ...]
    sparsities: tuple[float, ...] = (0.9, 0.95, 0.97)
    ham: bool = False
    """Rows with HAM as well."""
    renormalised: bool = False
    """The paper's ablation: gradients of norm 1 at most, for the baseline and for SparseOpt."""
    grow_from: tuple[GrowFrom, ...] = ("original",)
    """The gradients that RigL grows by under SparseOpt."""
    drawn: tuple[Drawn, ...] = ("curves", "budgets")
    corrections: tuple[str, ...] = ("none", "layer")
    seeds: int = 3
    of_methods: bool = False
    """It compares methods with each other, and is not of the paper."""


_CIFAR100, _IMAGENET = RECIPES["cifar100-resnet20"], RECIPES["imagenet-resnet50"]
_RIGL: tuple[MethodName, ...] = ("rigl",)
_SET: tuple[MethodName, ...] = ("set",)

_CIFAR100_RIGL = Target(
    *("table-cifar100-rigl", "CIFAR-100, ResNet-20, RigL", _CIFAR100, _RIGL, (100, 200, 300, 500)), ham=True
)
_CIFAR100_SET = replace(
    _CIFAR100_RIGL, name="table-cifar100-set", summary="CIFAR-100, ResNet-20, SET", methods=_SET
)
_CIFAR100_RIGL_RENORM = replace(
    _CIFAR100_RIGL,
    name="table-cifar100-rigl-renorm",
    summary="CIFAR-100, ResNet-20, RigL, gradients renormalised",
    renormalised=True,
)
_CIFAR100_SET_RENORM = replace(
    _CIFAR100_RIGL_RENORM,
    name="table-cifar100-set-renorm",
    summary="CIFAR-100, ResNet-20, SET, gradients renormalised",
    methods=_SET,
)
_IMAGENET_BOTH = Target(
    "table-imagenet", "ImageNet, ResNet-50, RigL and SET", _IMAGENET, ("rigl", "set"), (90, 180, 270)
)
_IMAGENET_RIGL = replace(_IMAGENET_BOTH, summary="ImageNet, ResNet-50, RigL", methods=_RIGL)
_IMAGENET_SET = replace(_IMAGENET_BOTH, summary="ImageNet, ResNet-50, SET", methods=_SET)
_IMAGENET_RIGL_RENORM = Target(
    "table-imagenet-renorm-rigl",
    "ImageNet, ResNet-50, RigL, gradients renormalised",
    *(_IMAGENET, _RIGL, (90, 270)),
    renormalised=True,
)
_IMAGENET_SET_RENORM = replace(
    _IMAGENET_RIGL_RENORM,
    name="table-imagenet-renorm-set",
    summary="ImageNet, ResNet-50, SET, gradients renormalised",
    methods=_SET,
)


def _figure(name: str, table: Target, drawn: Drawn, shows: str, **changes: Any) -> Target:
    return replace(
        table, name=f"figure-{name}", summary=f"{table.summary}: {shows}", drawn=(drawn,), **changes
    )


def _curves(name: str, table: Target) -> Target:
    return _figure(f"curves-{name}", table, "curves", "train and test accuracy by epoch")


def _budgets(name: str, table: Target) -> Target:
    return _figure(f"epochs-{name}", table, "budgets", "accuracy against total epochs", ham=False)


def _ham(name: str, table: Target) -> Target:
    return _figure(f"ham-{name}", table, "budgets", "accuracy against total epochs, with and without HAM")


def _itop(name: str, table: Target, epochs: tuple[int, ...]) -> Target:
    shows = "ITOP rate, grown by original and corrected gradients"
    return _figure(
        *(f"itop-{name}", table, "itop", shows),
        epochs=epochs,
        ham=False,
        grow_from=("original", "corrected"),
    )


_ALL = (
    *(_CIFAR100_RIGL, _CIFAR100_SET, _CIFAR100_RIGL_RENORM, _CIFAR100_SET_RENORM),
    *(_IMAGENET_BOTH, _IMAGENET_RIGL_RENORM, _IMAGENET_SET_RENORM),
    _curves("imagenet-rigl", _IMAGENET_RIGL),
    _curves("imagenet-set", _IMAGENET_SET),
    _curves("imagenet-rigl-renorm", _IMAGENET_RIGL_RENORM),
    _budgets("cifar100-rigl", _CIFAR100_RIGL),
    _budgets("cifar100-set", _CIFAR100_SET),
    _budgets("cifar100-rigl-renorm", _CIFAR100_RIGL_RENORM),
    _budgets("cifar100-set-renorm", _CIFAR100_SET_RENORM),
    _budgets("imagenet-rigl", _IMAGENET_RIGL),
    _budgets("imagenet-set", _IMAGENET_SET),
    _budgets("imagenet-rigl-renorm", _IMAGENET_RIGL_RENORM),
    _budgets("imagenet-set-renorm", _IMAGENET_SET_RENORM),
    _ham("cifar100-rigl", _CIFAR100_RIGL),
    _ham("cifar100-set", _CIFAR100_SET),
    _ham("cifar100-rigl-renorm", _CIFAR100_RIGL_RENORM),
    _ham("cifar100-set-renorm", _CIFAR100_SET_RENORM),
    _itop("cifar100", _CIFAR100_RIGL, (100, 300, 500)),
    _itop("imagenet", _IMAGENET_RIGL, (90, 180, 270)),
)

METHODS_TABLE = Target(
    "table-methods",
    "CIFAR-100, ResNet-20, the field's methods, no correction",
    _CIFAR100,
    tuple(name for name in get_args(MethodName) if name not in ("dense", "nm", "srste")),
    epochs=(20,),
    sparsities=(0.95,),
    corrections=("none",),
    seeds=2,
    drawn=(),
    of_methods=True,
)
"""Those that can have any sparsity; n:m has its own."""

TARGETS: dict[str, Target] = {target.name: target for target in (*_ALL, METHODS_TABLE)}
