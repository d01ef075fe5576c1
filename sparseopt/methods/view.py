"""What a method is shown of a network, what it answers, and what it may remember from step to step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from sparseopt.topology.layers import Layer


@dataclass(frozen=True)
class LayerView:
    """One layer at one step, whole also where it is sharded. None of its tensors may be changed in place.

    `memory` holds what the method has remembered of this layer: tensors of its shape, to read and to replace. It is saved
    with the optimizer's state.
    """

    mask: Tensor
    weight: Tensor
    grad: Tensor | None = None
    generator: torch.Generator | None = None
    layer: Layer | None = None
    memory: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    lr: float | Tensor = 0.0

    @property
    def shaped(self) -> Layer:
        """The layer; where nobody has said, a plain one of the mask's shape."""
        return self.layer or Layer("", tuple(self.mask.shape))

    def active(self) -> int:
        return int(self.mask.sum())

    def least(self) -> int:
        """Active weights that the layer cannot do without, of those that it has."""
        return min(self.active(), self.layer.least if self.layer else 1)


class Count(NamedTuple):
    """How many active weights of a layer stay, and how many it has after the update: the difference is grown."""

    keep: int
    active: int


Views = Mapping[str, LayerView]


def shapes_of(views: Views, memory: "Memory") -> dict[str, tuple[int, ...]]:
    """The shapes of all layers: shares of a network are those of the whole, also where some layers are frozen."""
    return {name: tuple(view.mask.shape) for name, view in views.items()} | memory.shapes


@dataclass
class Memory:
    """What a method remembers: numbers of its own, and tensors by layer. Saved with the optimizer's state."""

    numbers: dict[str, float] = field(default_factory=dict[str, float])
    layers: dict[str, dict[str, Tensor]] = field(default_factory=dict[str, dict[str, Tensor]])
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Of all layers, those left out of an update included; not saved."""

    def follow(self, parameters: Mapping[str, Tensor]) -> None:
        """Move to the devices that the parameters are on now."""
        for name, tensors in self.layers.items():
            for key, tensor in tensors.items():
                tensors[key] = tensor.to(parameters[name].device)

    def of(self, name: str) -> dict[str, Tensor]:
        return self.layers.setdefault(name, {})
