"""What a configuration costs in operations, counted as the papers count, without its data."""

from dataclasses import dataclass

import torch

import sparseopt as so
from sparseopt.analysis.flops import forward_flops
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.training.experiment import build_model


@dataclass(frozen=True)
class Facts:
    """What the cost of training on a data set depends on, so that it can be told without the data."""

    images: int
    shape: tuple[int, ...]
    classes: int


DATA = {
    "digits": Facts(4000, (1, 28, 28), 10),
    "mnist": Facts(60_000, (1, 28, 28), 10),
    "cifar10": Facts(50_000, (3, 32, 32), 10),
    "cifar100": Facts(50_000, (3, 32, 32), 100),
    "text": Facts(6500, (64,), 96),
    "imagenet": Facts(1_281_167, (3, 224, 224), 1000),
}


def dense_flops(config: Config) -> dict[str, int]:
    """Operations of a dense forward pass of one image, by parameter."""
    facts = DATA[config.data]
    kind = torch.long if config.data == "text" else torch.float32
    model = build_model(config, facts.shape, facts.classes)
    return forward_flops(model, torch.zeros(1, *facts.shape, dtype=kind))


def sparse_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The weights that a configuration makes sparse."""
    facts = DATA[config.data]
    model = build_model(config, facts.shape, facts.classes)
    found = so.topology.find_layers(model, config.include or None, config.exclude or None)
    return {name: layer.shape for name, (layer, _) in found.items()}
