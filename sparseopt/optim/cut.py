"""What a method's own start has set to zero, until it is known that nobody needs it.

A checkpoint is often resumed in this order: the model is built and made sparse, its weights are loaded, the optimizer is
made, the optimizer's state is loaded. Methods that begin with masks of their own put them in force when the optimizer is
made, and would cut weights whose masks come with the state. So what they cut is kept aside, and put back where a state with
other masks is loaded, unless somebody has written to the weights meanwhile; the first step forgets it.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from sparseopt.topology.sharding import local
from sparseopt.topology.storage import Storage


class Entries(NamedTuple):
    """Flat positions of a layer, the values that were there, and how often the weight had been written to by then."""

    position: Tensor
    values: Tensor
    version: int


class CutAtStart:
    """The entries of layers, by name, that were changed while it was watching."""

    def __init__(self) -> None:
        self.entries: dict[str, Entries] = {}

    @contextmanager
    def watching(self, layers: Mapping[str, Storage]) -> Iterator[None]:
        before = {name: each.loaded().clone().reshape(-1) for name, each in layers.items()}
        yield
        for name, each in layers.items():
            position = (before[name] != each.loaded().reshape(-1)).nonzero().view(-1)
            if position.numel():
                self.entries[name] = Entries(position, before[name][position], each.parameter._version)

    @torch.no_grad()
    def put_back(self, layers: Mapping[str, Storage], changing: Collection[str]) -> None:
        """Give `changing` layers, which get other masks, all that was cut, and others what is within their masks."""
        for name, (position, values, version) in list(self.entries.items()):
            layer = layers[name]
            if layer.parameter._version != version:
                del self.entries[name]
                continue
            position, values = position.to(layer.parameter.device), values.to(layer.parameter)
            inside = local(layer.mask).reshape(-1)[position]
            wanted = torch.ones_like(inside) if name in changing else inside
            layer.put_back(position[wanted], values[wanted])
            self.entries[name] = Entries(position, values, layer.parameter._version)
