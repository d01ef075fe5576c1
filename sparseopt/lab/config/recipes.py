"""What can be trained: one flat, typed, immutable configuration, and the paper's values of it.

A recipe is the configuration of one data set and one network; every field is an option of `sparseopt train`.
Where and on what a run happens (folders, device, threads) is not part of it: the same configuration is the same
experiment anywhere.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any, Literal, get_args

from sparseopt.lab.config.controls import CorrectionName, correction
from sparseopt.lab.data import DataName
from sparseopt.lab.errors import UserError
from sparseopt.lab.models import Shortcut
from sparseopt.topology.start.masks import mask_maker

ModelName = Literal["mlp", "resnet20", "resnet32", "resnet56", "resnet50", "decoder"]
OptimizerName = Literal["sgd", "adam", "adamw", "nadam", "radam", "rmsprop", "adagrad", "adamax"]
MethodName = Literal[
    "dense",
    "static",
    "set",
    "rigl",
    "gse",
    "srigl",
    "mest",
    "snfs",
    "dsr",
    "deepr",
    "gmp",
    "granet",
    "acdc",
    "topkast",
    "annealed",
    "nm",
    "srste",
]

SPARSE_ONLY = {
    "sparsity",
    "distribution",
    "include",
    "exclude",
    "fan_in",
    "correction",
    "correct_decay",
    "grow_from",
    "method_options",
    "clip",
}
SPARSE_ONLY |= {"drop_fraction", "drop_decay", "every", "until"}
"""The settings of masks."""

NAMED = {"data", "model", "method", "sparsity", "correction", "ham", "seed"}
"""The settings that the name of a run spells out."""


def _is_fan_in_pattern(text: str) -> bool:
    try:
        mask_maker(text)
    except ValueError:
        return False
    return True


def _known(value: str, names: Any, prefix: str) -> bool:
    """Is this one of the names, or something of one's own behind the prefix?"""
    return value in get_args(names) or (value.startswith(prefix) and len(value) > len(prefix))


def _or(names: Any) -> str:
    return ", ".join(get_args(names))


RANGES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("epochs batch_size lr_batch every image_size", lambda value: value >= 1, "at least 1"),
    ("data", lambda value: _known(value, DataName, "imagefolder:"), f"{_or(DataName)} or imagefolder:PATH"),
    ("model", lambda value: _known(value, ModelName, "timm:"), f"{_or(ModelName)} or timm:NAME"),
    ("weight_decay warmup_epochs warmup_lr final_lr", lambda value: value >= 0, "at least 0"),
    ("ham_alpha ham_beta", lambda value: value >= 0, "at least 0"),
    ("lr width max_grad_norm", lambda value: value > 0, "greater than 0"),
    ("data_fraction", lambda value: 0 < value <= 1, "greater than 0 and at most 1"),
    ("drop_fraction until", lambda value: 0 <= value <= 1, "between 0 and 1"),
    ("momentum sparsity", lambda value: 0 <= value < 1, "at least 0 and less than 1"),
    ("fan_in", _is_fan_in_pattern, "random, constant or bimodal:R with R at least 1"),
    ("seed", lambda value: 0 <= value < 2**32, "a whole number from 0 to 4294967295"),
    ("hidden", lambda value: bool(value) and min(value) >= 1, "one or more widths of at least 1"),
)
"""Settings, what must hold of them (where they are not None), and that in words."""

SHARES = ("sparsity", "drop_fraction", "until", "data_fraction", "momentum")
"""Settings that are shares of one, and that a person may have written in percent."""


@dataclass(frozen=True)
class Config:
    """Everything that decides what comes out of a run."""

    data: DataName | str
    """Data set; digits needs no download. imagefolder:PATH: your images, PATH/train/CLASS/* and PATH/val/CLASS/*."""
    model: ModelName | str
    """Network; timm:NAME is any of timm's, with initial weights of its own."""
    epochs: int
    """Passes over the training images."""
    batch_size: int
    """Images a step."""
    lr: float
    """Peak learning rate, for batches of `lr_batch` images. The recipes' is SGD's; AdamW wants about 0.001."""
    weight_decay: float
    """Of the optimizer, on all parameters."""
    warmup_epochs: float
    """Epochs over which the learning rate rises linearly, before it falls as half a cosine."""
    warmup_lr: float
    """Learning rate of the very first step."""
    final_lr: float
    """Learning rate that the cosine ends at."""
    lr_batch: int | None = None
    """Batch size that lr is meant for: with another one, lr is scaled in proportion. None: never scaled."""
    optimizer: OptimizerName = "sgd"
    """The optimizer that SparseOpt wraps."""
    momentum: float = 0.9
    """Of SGD and RMSprop; of the Adam family, the first beta."""
    method: MethodName = "rigl"
    """How connections move: not at all (static), at random (set), by gradient (rigl), ...; dense has no masks.
    docs/methods.md has them all."""
    method_options: tuple[str, ...] = ()
    """Settings of the method that no other has, or that are to differ, as NAME=VALUE: soft=True lam=0.2."""
    sparsity: float = 0.9
    """Share of zeros among all sparsifiable weights."""
    distribution: Literal["erk", "er", "uniform"] = "erk"
    """How the sparsity is shared among the layers."""
    include: tuple[str, ...] = ()
    """Patterns of the names of the parameters that may be sparse, such as 'stages.*'; none: all."""
    exclude: tuple[str, ...] = ()
    """Patterns of the names of the parameters that stay dense, such as '*.shortcut.*'; --exclude alone: none do."""
    fan_in: str = "random"
    """Fan-in of the first masks: random, constant, or bimodal:R (half of the neurons have R times the other's)."""
    correction: CorrectionName = "auto"
    """Skew correction by fan-in (layer, global, overall) or by the weights' norms (measured, angular); none is plain dynamic
    sparse training; auto is layer before batch norm, and none for methods that go by gradients; shuffled and layerwise are
    controls."""
    correct_decay: bool = False
    """Let the correction scale the weight decay as well as the gradient: with SGD, a learning rate per neuron."""
    drop_fraction: float = 0.3
    """Share of the active weights that the first update moves."""
    drop_decay: Literal["cosine", "constant"] = "cosine"
    """Whether that share falls as half a cosine (RigL) or stays (SET, JaxPruner)."""
    every: int = 100
    """Steps between two updates of the masks."""
    until: float = 0.75
    """Share of the training after which the masks stay: 0.75 in RigL, 1 moves them to the end."""
    grow_from: Literal["original", "corrected"] = "original"
    """The gradient that RigL grows by: before or after the skew correction."""
    ham: bool = False
    """Add HAM's multiplicative step."""
    ham_alpha: float = 80.0
    """Strength of HAM."""
    ham_beta: float = 0.0
    """Decay within HAM's step."""
    max_grad_norm: float | None = None
    """Renormalise the gradients to at most this global norm; the paper's ablation is 1."""
    clip: Literal["active", "paper"] = "active"
    """What that norm is taken over: the gradients that move weights, or the dense ones as in the paper."""
    width: float = 1.0
    """Multiplier of all hidden channels."""
    hidden: tuple[int, ...] = (512, 512)
    """Hidden layers of the MLP."""
    shortcut: Shortcut = "convolution"
    """Where a CIFAR ResNet changes its shape: 3x3 convolution (the authors' network), 1x1 (projection), or zeros (padding)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the products in forward and backward; weights, gradients and masks are in float32 with either."""
    channels_last: bool = False
    """Lay convolutions out with their channels last, which GPUs want with bfloat16."""
    image_size: int = 224
    """Side of the images of imagenet and imagefolder, in pixels."""
    augment: bool | None = None
    """Random crops and flips; None: where the data set allows it."""
    data_fraction: float = 1.0
    """Share of the training images that are used, of every class alike; the same images whatever the seed."""
    seed: int = 0
    """Decides initial weights, masks, order of the images and augmentation."""

    def __post_init__(self) -> None:
        for names, holds, expected in RANGES:
            for name in names.split():
                value = getattr(self, name)
                _require(value is None or holds(value), name, value, expected)
        limit = f"at most --epochs, which is {self.epochs}"
        _require(self.warmup_epochs <= self.epochs, "warmup_epochs", self.warmup_epochs, limit)
        if self.clip == "paper":
            self._check_paper_clip()

    def _check_paper_clip(self) -> None:
        if self.max_grad_norm is None:
            raise UserError(
                "--clip paper says how to clip: give the norm as well, --max-grad-norm 1 in the paper"
            )
        if callable(correction(self.correction)):
            raise UserError(
                f"--correction {self.correction} is a control for --clip active: the paper's clip lets one part of the "
                "correction act before it and one after, and the control has no second part"
            )

    def applies(self, name: str) -> bool:
        """Does this setting have a say in the run? Those of the masks have none in a dense one, nor has what is not corrected."""
        if name == "correct_decay" and self.correction == "none":
            return False
        return self.method != "dense" or name not in SPARSE_ONLY

    @property
    def peak_lr(self) -> float:
        """The learning rate at the end of the warm-up."""
        return self.lr if self.lr_batch is None else self.lr * self.batch_size / self.lr_batch

    @property
    def recipe(self) -> str:
        """The data set and the network: the name of the recipe, if there is one of these two."""
        return f"{short(self.data)}-{short(self.model)}"

    @property
    def run_name(self) -> str:
        """A name that tells the main settings, and tells apart any two configurations that train differently."""
        sparse = [] if self.method == "dense" else [f"{self.sparsity:g}", self.correction]
        parts = [self.recipe, self.method, *sparse, *(["ham"] if self.ham else []), f"seed{self.seed}"]
        if rest := self.unusual():
            parts.append(hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:12])
        return "-".join(parts)

    def unusual(self) -> dict[str, Any]:
        """The settings that the name does not spell out and in which this run departs from its recipe.

        Without a recipe of that name, those that have no default or depart from it. So a setting that comes to be
        later does not rename the runs that leave it at its default.
        """
        usual = RECIPES[self.recipe].to_json() if self.recipe in RECIPES else DEFAULTS
        settings = {name: value for name, value in self.in_force().items() if not _spelled_out(name, value)}
        return {name: value for name, value in settings.items() if name not in usual or usual[name] != value}

    def in_force(self) -> dict[str, Any]:
        """The settings that have a say in the run: two configurations that agree in them are the same experiment."""
        return {name: value for name, value in self.to_json().items() if self.applies(name)}

    def to_json(self) -> dict[str, Any]:
        """The configuration as JSON has it: lists for tuples."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def _spelled_out(name: str, value: Any) -> bool:
    """Does the name of a run tell this setting whole? A search may choose a sparsity of many digits, and a path is shortened."""
    if name in ("data", "model"):
        return short(value) == value
    return name in NAMED and (name != "sparsity" or float(f"{value:g}") == value)


def short(value: str) -> str:
    """A data set or network in the name of a folder: of a path, the last part.

    >>> short("cifar100"), short("imagefolder:/data/birds/"), short("timm:resnet18.a1_in1k")
    ('cifar100', 'imagefolder-birds', 'timm-resnet18.a1_in1k')
    """
    kind, colon, rest = value.partition(":")
    return f"{kind}-{rest.rstrip('/').rpartition('/')[2]}" if colon else value


def _require(holds: bool, name: str, value: Any, expected: str) -> None:
    if not holds:
        percent = name in SHARES and isinstance(value, int | float) and 1 < value < 100
        meant = f"; for {value:g}%, write {value / 100:g}" if percent else ""
        raise UserError(f"--{name.replace('_', '-')} must be {expected}, got {value}{meant}")


DEFAULTS: dict[str, Any] = json.loads(
    json.dumps(
        {field.name: field.default for field in dataclasses.fields(Config) if field.default is not MISSING}
    )
)
"""What the settings are where neither a recipe nor a person says it, as JSON has it."""

_CIFAR100 = Config(
    "cifar100",
    "resnet20",
    epochs=100,
    batch_size=256,
    lr=0.1,
    weight_decay=5e-4,
    warmup_epochs=5.0,
    warmup_lr=0.0,
    final_lr=1e-6,
    exclude=("*.shortcut.*",),
)

_DIGITS = dataclasses.replace(
    _CIFAR100,
    data="digits",
    model="mlp",
    epochs=20,
    batch_size=128,
    warmup_epochs=1.0,
    sparsity=0.95,
    every=25,  # an epoch has 31 steps
    exclude=(),
)

RECIPES: dict[str, Config] = {
    "digits-mlp": _DIGITS,
    "mnist-mlp": dataclasses.replace(_DIGITS, data="mnist", epochs=10, every=100),
    "cifar100-resnet20": _CIFAR100,
    "imagenet-resnet50": dataclasses.replace(
        _CIFAR100,
        data="imagenet",
        model="resnet50",
        epochs=90,
        batch_size=128,
        lr_batch=256,
        weight_decay=1e-4,
        warmup_lr=1e-5,
        final_lr=1e-5,
        exclude=(),
    ),
    "text-decoder": dataclasses.replace(
        _DIGITS,
        data="text",
        model="decoder",
        epochs=5,
        batch_size=24,
        optimizer="adamw",
        lr=2e-3,
        weight_decay=0.01,
        warmup_epochs=0.5,
        final_lr=0.0,
        sparsity=0.9,
        distribution="uniform",
        exclude=("head.weight",),
        every=50,
        max_grad_norm=1.0,
    ),
}
"""The paper's values for CIFAR-100 and ImageNet; for digits, on which it trains nothing, CIFAR's, scaled down."""
