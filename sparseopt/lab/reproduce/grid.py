"""The runs of a target at a scale: rows of the table, its columns, and the configuration of every cell and seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import cast

from sparseopt.lab.config.controls import CorrectionName, correction
from sparseopt.lab.config.recipes import Config, MethodName
from sparseopt.lab.errors import UserError
from sparseopt.lab.reproduce.corrections import DECAY, NAMES, ORDER, READINGS
from sparseopt.lab.reproduce.paper import Setting
from sparseopt.lab.reproduce.scale import Candidate, Scale, is_papers, warmup
from sparseopt.lab.reproduce.targets import GrowFrom, Target

METHODS: dict[MethodName, str] = {
    "dense": "dense",
    "static": "static",
    "set": "SET",
    "rigl": "RigL",
    "gse": "GSE",
    "srigl": "SRigL",
    "mest": "MEST",
    "snfs": "SNFS",
    "dsr": "DSR",
    "deepr": "DeepR",
    "gmp": "GMP",
    "granet": "GraNet",
    "acdc": "AC/DC",
    "topkast": "Top-KAST",
    "annealed": "annealed top-k",
    "nm": "n:m RigL",
    "srste": "SR-STE",
}


@dataclass(frozen=True)
class Arm:
    """One way to train, which the table compares with others."""

    correction: CorrectionName
    ham: bool = False
    lr_factor: float = 1.0
    grow_from: GrowFrom = "original"
    decay: bool = False
    """The correction scales the weight decay as well."""

    @property
    def label(self) -> str:
        """The name of the row."""
        return (
            NAMES[self.correction]
            + (", decay too" if self.decay else "")
            + (" w/ HAM" if self.ham else "")
            + (f", lr x{self.lr_factor:g}" if self.lr_factor != 1 else "")
            + (", grown by corrected gradients" if self.grow_from == "corrected" else "")
        )

    @property
    def baseline(self) -> "Arm | None":
        """What it is compared with: the same without correction, or, for HAM alone or another rate, the plain baseline."""
        plain = Arm("none")
        if self == plain:
            return None
        return Arm("none", ham=self.ham) if self.correction != "none" else plain

    @property
    def published(self) -> bool:
        """Is it a row of the paper?"""
        usual = self.lr_factor == 1 and self.grow_from == "original"
        return usual and self.correction in ("none", *READINGS)


@dataclass(frozen=True)
class GridRow:
    """A row of the table."""

    sparsity: float
    method: MethodName
    arm: Arm

    @property
    def labels(self) -> tuple[str, str, str]:
        return f"{100 * self.sparsity:g}%", METHODS[self.method], self.arm.label


@dataclass(frozen=True)
class Grid:
    """A target at a scale."""

    target: Target
    scale: Scale
    chosen: Mapping[tuple[GridRow, int], Candidate] = field(default_factory=dict)
    """Where rows are tuned: the settings that each was found best with, by row and epochs."""

    def __post_init__(self) -> None:
        if not self.target.renormalised:
            return
        if not self.scale.lr_controls and not self.scale.tunes("lr"):
            raise UserError(
                f"--lr-controls must name one multiple or more, such as 2,4: most of what {self.target.name} shows is step "
                "size, and it is not shown without that control, or --tune lr=..."
            )
        for name, _ in self.corrections:
            if callable(correction(name)):
                raise UserError(
                    f"--corrections {name} is no control under the paper's renormalisation, in which one part of the correction "
                    "acts before the clip and one after it; use it with the target without renorm"
                )

    @property
    def corrections(self) -> list[tuple[CorrectionName, bool]]:
        """The corrections in the order of the rows, each with whether it scales the decay."""
        return [
            (name, decay)
            for name, decay in product(ORDER, (False, True))
            if (f"{name}{DECAY}" if decay else name) in self.scale.corrections
        ]

    @property
    def arms(self) -> list[Arm]:
        hams = (True, False) if self.scale.ham else (False,)
        arms = [
            Arm(name, ham, grow_from=growth, decay=decay)
            for (name, decay), ham in product(self.corrections, hams)
            for growth in (self.target.grow_from if name != "none" else ("original",))
        ]
        return arms + [Arm("none", lr_factor=factor) for factor in self.scale.lr_controls]

    @property
    def rows(self) -> list[GridRow]:
        axes = product(self.scale.sparsities, self.methods, self.arms)
        return [GridRow(*each) for each in axes]

    @property
    def methods(self) -> tuple[MethodName, ...]:
        return cast("tuple[MethodName, ...]", self.scale.methods)

    def config(self, row: GridRow, epochs: int, seed: int, candidate: Candidate | None = None) -> Config:
        """The run of one cell and seed, with the settings that the cell was found best with, or with those of a candidate."""
        recipe, arm, scale = self.target.recipe, row.arm, self.scale
        tuned = self.chosen.get((row, epochs), ()) if candidate is None else candidate
        config = replace(
            recipe,
            epochs=epochs,
            warmup_epochs=warmup(recipe.warmup_epochs, epochs),
            method=row.method,
            sparsity=row.sparsity,
            correction=arm.correction,
            correct_decay=arm.decay,
            ham=arm.ham,
            grow_from=arm.grow_from,
            lr=recipe.lr * arm.lr_factor,
            batch_size=scale.batch_size,
            width=scale.width,
            data_fraction=scale.fraction_of_data,
            seed=seed,
            max_grad_norm=1.0 if self.target.renormalised else recipe.max_grad_norm,
            clip="paper" if self.target.renormalised else recipe.clip,
        )
        return replace(config, **dict(tuned))

    def configs(self) -> list[Config]:
        """All runs, seed by seed, so that whole tables of fewer seeds come first."""
        axes = product(range(self.scale.seeds), self.rows, self.scale.epochs)
        return [self.config(row, epochs, seed) for seed, row, epochs in axes]

    def setting(self, row: GridRow) -> Setting | None:
        """What the paper calls the setting of a row, if it has such a row."""
        if not row.arm.published or self.target.of_methods:
            return None
        return Setting(
            *(self.target.recipe.data, row.method, self.target.renormalised, row.sparsity),
            corrected=row.arm.correction != "none",
            ham=row.arm.ham,
        )

    @property
    def papers(self) -> bool:
        """Can the figures stand beside the paper's?"""
        return is_papers(self.target, self.scale)
