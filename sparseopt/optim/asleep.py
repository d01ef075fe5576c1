"""Weights that learn though the forward pass does not see them, as under Top-KAST and SR-STE.

The model's tensors hold what the forward pass uses, and exact zeros elsewhere. What else learns lies here between steps, and is
put into the tensors (`wake`) while the base optimizer moves the weights, and taken out of them again afterwards (`sleep`). What
does not learn, but keeps its value, is in the tensors only while the method chooses among all weights (`recall`).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sparseopt.methods import Method, WeightMethod
from sparseopt.methods.view import Memory
from sparseopt.optim.connections import view_of
from sparseopt.topology import Topology
from sparseopt.topology.bits import pack, unpack
from sparseopt.topology.sharding import gather, local, shard_like


class Asleep:
    """The values of the inactive weights that learn, and which they are: this rank's part."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.awake: dict[str, Tensor] = {}  # mask of all that learn, the active weights included
        self.woken = False
        self.recalled = True  # is what does not learn in the tensors as well?

    @torch.no_grad()
    def wake(self, topology: Topology) -> None:
        if self.woken:
            return
        for name, values in self.values.items():
            weight = local(topology.parameters[name].detach())
            mask = local(topology.masks[name])
            weight.copy_(torch.where(self.awake[name] & ~mask, values, weight))
        self.woken, self.recalled = True, False

    @torch.no_grad()
    def recall(self, topology: Topology) -> None:
        """Put what does not learn, which the optimizer's step must not see, into the tensors as well."""
        if self.recalled:
            return
        for name, values in self.values.items():
            weight = local(topology.parameters[name].detach())
            weight.copy_(torch.where(self.awake[name], weight, values))
        self.recalled = True

    @torch.no_grad()
    def sleep(self, topology: Topology, keep: bool) -> None:
        if not self.woken:
            return
        self.recall(topology)
        for name in self.awake:
            weight, mask = local(topology.parameters[name].detach()), local(topology.masks[name])
            if keep:
                self.values[name] = weight.masked_fill(mask, 0)
            weight.masked_fill_(~mask, 0)
        self.woken = False

    def choose(
        self, topology: Topology, method: WeightMethod, step: int, memory: Memory
    ) -> dict[str, Tensor]:
        """Ask the method who learns from now on. Gives, by layer, who did before and does still: their state stays."""
        stay: dict[str, Tensor] = {}
        for name, parameter in topology.parameters.items():
            chosen = method.awake(view_of(topology, name, step, None, memory), step)
            after = local(shard_like(chosen, parameter))
            stay[name] = self.awake.get(name, after) & after
            self.awake[name] = after
        return stay

    def follow(self, topology: Topology) -> None:
        """Move to the devices that the parameters are on now."""
        for tensors in (self.values, self.awake):
            for name, tensor in tensors.items():
                tensors[name] = tensor.to(local(topology.parameters[name]).device)

    def state_dict(self, topology: Topology) -> dict[str, Any]:
        return {
            name: {
                "awake": pack(gather(awake, topology.parameters[name])),
                "values": gather(self.values[name], topology.parameters[name])
                if name in self.values
                else None,
            }
            for name, awake in self.awake.items()
        }

    def load_state_dict(self, state: Mapping[str, Any], topology: Topology) -> None:
        self.values, self.awake, self.woken, self.recalled = {}, {}, False, True
        for name, saved in state.items():
            parameter, shape = topology.parameters[name], topology.layers[name].shape
            self.awake[name] = local(shard_like(unpack(saved["awake"], shape), parameter))
            if saved["values"] is not None:
                self.values[name] = local(shard_like(saved["values"], parameter)).clone()


def trains_inactive(method: Method) -> bool:
    return isinstance(method, WeightMethod) and method.trains_inactive
