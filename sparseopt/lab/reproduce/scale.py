"""At what scale a target is run: everything the paper fixed and a person may make smaller, and that in words."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, get_args

from tyro.constructors import PrimitiveConstructorSpec

from sparseopt.lab.config.recipes import RECIPES, MethodName
from sparseopt.lab.errors import UserError, near, require
from sparseopt.lab.reproduce.corrections import DECAY, ORDER
from sparseopt.lab.reproduce.targets import Target
from sparseopt.lab.show.words import counted

LR_CONTROLS = (2.0, 4.0)

TUNABLE = {"lr": float, "drop_fraction": float, "every": int}
"""What the paper searches by a grid, for baseline and method alike."""

Candidate = tuple[tuple[str, float], ...]
"""Settings that a row may be found best with, such as (("lr", 0.2),)."""


def _several(kind: Callable[[str], Any], metavar: str) -> PrimitiveConstructorSpec[Any]:
    """An option of several values, separated by commas or spaces, each counted once."""

    def read(words: list[str]) -> tuple[Any, ...]:
        try:
            return tuple(dict.fromkeys(kind(part) for word in words for part in word.split(",") if part))
        except ValueError:
            given = " ".join(words)
            raise UserError(f"an option that takes {metavar} must have numbers, got {given!r}") from None

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


def _choices(words: list[str]) -> Candidate:
    """Settings with their values: lr=0.1,0.2 every=100,200."""
    made: dict[tuple[str, float], None] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.strip("-").replace("-", "_")
        if name not in TUNABLE or not equals:
            known = ", ".join(TUNABLE)
            raise UserError(f"--tune takes NAME=VALUE,VALUE,... with NAME one of {known}, got {word!r}")
        try:
            made |= dict.fromkeys((name, TUNABLE[name](value)) for value in values.split(",") if value)
        except ValueError:
            raise UserError(
                f"--tune {name} must have numbers, such as lr=0.1,0.2,0.4, got {word!r}"
            ) from None
    return tuple(made)


def _chosen_text(choices: Candidate) -> list[str]:
    names = dict.fromkeys(name for name, _ in choices)
    return [f"{name}={','.join(f'{v:g}' for n, v in choices if n == name)}" for name in names]


Choices = Annotated[
    Candidate,
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=X,X,...",
        instance_from_str=_choices,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=_chosen_text,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What is run of a target."""

    epochs: Integers
    """Total epochs, one column of the table each. The warm-up is the recipe's, or a quarter of the run if that is less."""
    sparsities: Numbers
    """Sparsities, one block of rows each."""
    methods: Names
    """Methods, rows of a block."""
    seeds: int = 3
    """Seeds 0, 1, ..., this many of them."""
    fraction_of_data: float = 1.0
    """Share of the training images, of every class alike, the same for all runs."""
    corrections: Names = ("none", "layer")
    """none (the baseline), layer, global and overall (SparseOpt), measured and angular (ours), and controls: unnormalized,
    layerwise, shuffled. With +decay behind the name, such as layer+decay, the correction scales the weight decay as well."""
    ham: bool
    """Rows with HAM as well."""
    lr_controls: Numbers
    """Multiples of the learning rate that the baseline is trained with as well: what does a larger step alone bring?"""
    batch_size: int
    """Images a step."""
    width: float
    """Multiplier of all hidden channels."""
    tune: Choices = ()
    """Settings that each row is tuned by first, all rows alike, such as lr=0.1,0.2,0.4: its seeds then run at its own best.
    The paper searches lr, drop_fraction and every like this. One seed (0) decides, by its test accuracy."""
    tune_epochs: int | None = None
    """Epochs of the runs that decide; None: those of the column."""
    tune_further: int = 2
    """Times that a value further out is tried where the best is at the edge of those tried; 0: it is only said."""

    @classmethod
    def of(cls, target: Target) -> "Scale":
        """The paper's scale; of the number of seeds it says nothing."""
        return cls(
            epochs=target.epochs,
            sparsities=target.sparsities,
            methods=target.methods,
            seeds=target.seeds,
            corrections=target.corrections,
            ham=target.ham,
            lr_controls=LR_CONTROLS if target.renormalised else (),
            batch_size=target.recipe.batch_size,
            width=target.recipe.width,
        )

    def __post_init__(self) -> None:
        require(bool(self.epochs) and min(self.epochs) >= 1, "epochs", _list(self.epochs), "at least 1 each")
        sparse = bool(self.sparsities) and all(0 < sparsity < 1 for sparsity in self.sparsities)
        require(sparse, "sparsities", _list(self.sparsities), "greater than 0 and less than 1 each")
        for name in self.methods or ("",):
            self._check_method(name)
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
        self._check_tuning()
        if "none" not in self.corrections:
            raise UserError(
                f"--corrections must include none, the baseline that the others are compared with, got {_list(self.corrections)}"
            )

    def _check_method(self, name: str) -> None:
        known = get_args(MethodName)
        if name not in known:
            raise UserError(f"--methods has no {name!r}{near(name, known)}; there are {_list(known)}")

    def _check_correction(self, name: str) -> None:
        if name.removesuffix(DECAY) == "auto":
            raise UserError(
                f"--corrections {name} chooses layer by layer, and in a table every row is one correction: write "
                f"layer{name.removeprefix('auto')}, which it is before batch norm under methods that do not go by gradients"
            )
        if name.removesuffix(DECAY) not in ORDER:
            raise UserError(f"--corrections has no {name!r}{near(name, ORDER)}; there are {_list(ORDER)}")
        if name == f"none{DECAY}":
            raise UserError(
                "--corrections none+decay says nothing: without a correction there is nothing to scale decay by"
            )
        if name.endswith(DECAY) and self.ham:
            raise UserError(
                f"--corrections {name} does not go with HAM, whose step reads the gradient that the decay is put into; "
                "use --no-ham"
            )

    def _check_tuning(self) -> None:
        require(
            self.tune_epochs is None or self.tune_epochs >= 1, "tune_epochs", self.tune_epochs, "at least 1"
        )
        require(self.tune_further >= 0, "tune_further", self.tune_further, "at least 0")
        if self.tunes("lr") and self.lr_controls:
            raise UserError(
                "--tune lr gives the baseline its own best learning rate, so --lr-controls must be empty, "
                f"got {_list(self.lr_controls)}"
            )

    def tunes(self, name: str) -> bool:
        """Is this setting tuned?"""
        return any(name == tuned for tuned, _ in self.tune)

    @property
    def searches(self) -> bool:
        """Is there more than one candidate? One is no search: every row has these settings."""
        return len(self.candidates) > 1

    @property
    def candidates(self) -> list[Candidate]:
        """Every combination of the values to tune by; none without tuning."""
        names = dict.fromkeys(name for name, _ in self.tune)
        axes = [[choice for choice in self.tune if choice[0] == name] for name in names]
        return [tuple(choices) for choices in product(*axes)] if axes else []


def warmup(recipe_epochs: float, epochs: int) -> float:
    """The warm-up of a run of this length: the recipe's, or a quarter of the run if that is less."""
    return min(recipe_epochs, epochs / 4)


def sentence(target: Target, scale: Scale) -> str:
    """The scale in words, and beside every number that is not the paper's (of a table of methods: its own), that one."""
    paper = Scale.of(target)
    recipe, whose = target.recipe, "this table" if target.of_methods else "the paper"
    warmups = {epochs: warmup(recipe.warmup_epochs, epochs) for epochs in scale.epochs}
    shorter = [f"{w:g} of {e}" for e, w in warmups.items() if w != recipe.warmup_epochs]
    parts = [
        _beside(counted_list(scale.epochs, "epoch"), scale.epochs, paper.epochs, whose),
        *([f"warm-up shortened to {', '.join(shorter)} epochs"] if shorter else []),
        _beside(f"sparsity {_list(scale.sparsities)}", scale.sparsities, paper.sparsities, whose),
        *([f"{_list(scale.methods)} alone"] if scale.methods != paper.methods else []),
        counted(scale.seeds, "seed"),
        "all training images"
        if scale.fraction_of_data == 1
        else f"{scale.fraction_of_data:.4g} of the training images",
        *([f"batch size {scale.batch_size}"] if scale.batch_size != paper.batch_size else []),
        *([f"width {scale.width:g}"] if scale.width != paper.width else []),
        *(["HAM left out"] if target.ham and not scale.ham else []),
        *([_tuning_words(scale)] if scale.tune else []),
    ]
    return f"{target.summary}. Scale: {', '.join(parts)}."


def _tuning_words(scale: Scale) -> str:
    if not scale.searches:
        return f"every row with {'; '.join(_chosen_text(scale.tune))}"
    names = " and ".join(dict.fromkeys(name.replace("_", " ") for name, _ in scale.tune))
    at = "" if scale.tune_epochs is None else f" at {counted(scale.tune_epochs, 'epoch')}"
    return f"each row at its own best {names} of {'; '.join(_chosen_text(scale.tune))} (seed 0{at})"


def is_papers(target: Target, scale: Scale) -> bool:
    """Is everything but epochs, sparsities, seeds and rows the paper's: can a figure stand beside the paper's?"""
    paper = Scale.of(target)
    same = (paper.batch_size, paper.width, 1.0) == (scale.batch_size, scale.width, scale.fraction_of_data)
    return same and not target.of_methods and target.recipe == RECIPES.get(target.recipe.recipe)


def counted_list(numbers: Sequence[int], noun: str) -> str:
    """Numbers with their noun.

    >>> counted_list((20,), "epoch"), counted_list((1,), "epoch"), counted_list((5, 20), "epoch")
    ('20 epochs', '1 epoch', '5, 20 epochs')
    """
    return counted(numbers[0], noun) if len(numbers) == 1 else f"{_list(numbers)} {noun}s"


def _beside(text: str, here: tuple[float, ...], usual: tuple[float, ...], whose: str) -> str:
    return f"{whose}'s {text}" if here == usual else f"{text} ({whose}: {_list(usual)})"


def _list(values: Iterable[object]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values) or "none"
