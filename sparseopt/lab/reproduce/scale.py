"""At what scale a target is run: everything the paper fixed and a person may make smaller, and that in words."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from tyro.constructors import PrimitiveConstructorSpec

from sparseopt.lab.config.controls import CorrectionName
from sparseopt.lab.config.recipes import RECIPES
from sparseopt.lab.errors import UserError, near, require
from sparseopt.lab.reproduce.targets import Target
from sparseopt.lab.show.words import counted

LR_CONTROLS = (2.0, 4.0)


def _several(kind: Callable[[str], Any], metavar: str) -> PrimitiveConstructorSpec[Any]:
    """An option of several values, separated by commas or spaces, each counted once."""

    def read(words: list[str]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(kind(part) for word in words for part in word.split(",") if part))

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda values: [",".join(f"{value}" for value in values)],
    )


Integers = Annotated[tuple[int, ...], _several(int, "N,N,...")]
Numbers = Annotated[tuple[float, ...], _several(float, "X,X,...")]
Names = Annotated[tuple[str, ...], _several(str, "NAME,NAME,...")]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What is run of a target."""

    epochs: Integers
    """Total epochs, one column of the table each. The warm-up is the recipe's, or a quarter of the run if that is less."""
    sparsities: Numbers
    """Sparsities, one block of rows each."""
    seeds: int = 3
    """Seeds 0, 1, ..., this many of them."""
    fraction_of_data: float = 1.0
    """Share of the training images, of every class alike, the same for all runs."""
    corrections: Names = ("none", "layer")
    """none (the baseline), layer and global (SparseOpt), and controls: unnormalized, layerwise, shuffled."""
    ham: bool
    """Rows with HAM as well."""
    lr_controls: Numbers
    """Multiples of the learning rate that the baseline is trained with as well: what does a larger step alone bring?"""
    batch_size: int
    """Images a step."""
    width: float
    """Multiplier of all hidden channels."""

    @classmethod
    def of(cls, target: Target) -> "Scale":
        """The paper's scale; of the number of seeds it says nothing."""
        return cls(
            epochs=target.epochs,
            sparsities=target.sparsities,
            ham=target.ham,
            lr_controls=LR_CONTROLS if target.renormalised else (),
            batch_size=target.recipe.batch_size,
            width=target.recipe.width,
        )

    def __post_init__(self) -> None:
        require(bool(self.epochs) and min(self.epochs) >= 1, "epochs", _list(self.epochs), "at least 1 each")
        sparse = bool(self.sparsities) and all(0 < sparsity < 1 for sparsity in self.sparsities)
        require(sparse, "sparsities", _list(self.sparsities), "greater than 0 and less than 1 each")
        require(self.seeds >= 1, "seeds", self.seeds, "at least 1")
        require(
            0 < self.fraction_of_data <= 1,
            "fraction_of_data",
            self.fraction_of_data,
            "greater than 0 and at most 1",
        )
        larger = all(math.isfinite(factor) and factor > 0 and factor != 1 for factor in self.lr_controls)
        require(larger, "lr_controls", _list(self.lr_controls), "greater than 0 and other than 1 each")
        for name in self.corrections:
            self._check_correction(name)
        if "none" not in self.corrections:
            raise UserError(
                f"--corrections must include none, the baseline that the others are compared with, got {_list(self.corrections)}"
            )

    def _check_correction(self, name: str) -> None:
        known = get_args(CorrectionName)
        if name not in known:
            raise UserError(f"--corrections has no {name!r}{near(name, known)}; there are {_list(known)}")


def warmup(recipe_epochs: float, epochs: int) -> float:
    """The warm-up of a run of this length: the recipe's, or a quarter of the run if that is less."""
    return min(recipe_epochs, epochs / 4)


def sentence(target: Target, scale: Scale) -> str:
    """The scale in words, and beside every number that is not the paper's, the paper's."""
    paper = Scale.of(target)
    recipe = target.recipe
    warmups = {epochs: warmup(recipe.warmup_epochs, epochs) for epochs in scale.epochs}
    shorter = [f"{w:g} of {e}" for e, w in warmups.items() if w != recipe.warmup_epochs]
    parts = [
        _beside(counted_list(scale.epochs, "epoch"), scale.epochs, paper.epochs),
        *([f"warm-up shortened to {', '.join(shorter)} epochs"] if shorter else []),
        _beside(f"sparsity {_list(scale.sparsities)}", scale.sparsities, paper.sparsities),
        counted(scale.seeds, "seed"),
        "all training images"
        if scale.fraction_of_data == 1
        else f"{scale.fraction_of_data:.4g} of the training images",
        *([f"batch size {scale.batch_size}"] if scale.batch_size != paper.batch_size else []),
        *([f"width {scale.width:g}"] if scale.width != paper.width else []),
        *(["HAM left out"] if target.ham and not scale.ham else []),
    ]
    return f"{target.summary}. Scale: {', '.join(parts)}."


def is_papers(target: Target, scale: Scale) -> bool:
    """Is everything but epochs, sparsities, seeds and rows the paper's: can a figure stand beside the paper's?"""
    paper = Scale.of(target)
    same = (paper.batch_size, paper.width, 1.0) == (scale.batch_size, scale.width, scale.fraction_of_data)
    return same and target.recipe == RECIPES.get(target.recipe.recipe)


def counted_list(numbers: Sequence[int], noun: str) -> str:
    """Numbers with their noun.

    >>> counted_list((20,), "epoch"), counted_list((1,), "epoch"), counted_list((5, 20), "epoch")
    ('20 epochs', '1 epoch', '5, 20 epochs')
    """
    return counted(numbers[0], noun) if len(numbers) == 1 else f"{_list(numbers)} {noun}s"


def _beside(text: str, here: tuple[float, ...], paper: tuple[float, ...]) -> str:
    return f"the paper's {text}" if here == paper else f"{text} (the paper: {_list(paper)})"


def _list(values: Iterable[object]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values) or "none"
