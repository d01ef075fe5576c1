"""Who is connected to whom: the masks of a network, and everything that can be read off them.

A `Topology` refers to the model's own parameters, which stay plain dense `nn.Parameter`s with exact zeros where the mask is
False. Masks change through `replace` alone: it holds the counts to what they were, keeps the union of all masks (behind the
ITOP rate of Liu et al. 2021) at one bit a weight, and counts a version up, by which whoever caches something derived from
the masks notices.
"""

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sparseopt.topology.active import ActiveEntries, Copies, TorchCopies
from sparseopt.topology.bits import pack, unpack
from sparseopt.topology.layers import Layer
from sparseopt.topology.sharding import gather, local, shard_like, whole

FORMAT = 1


class Topology:
    """Masks of a network and what follows from them; made by `sparsify`, moved by a method through `SparseOpt`."""

    def __init__(
        self,
        layers: Mapping[str, Layer],
        parameters: Mapping[str, nn.Parameter],
        masks: Mapping[str, Tensor],
        *,
        seed: int = 0,
        init: str | None = None,
    ) -> None:
        self.layers = dict(layers)
        self.parameters = dict(parameters)
        self.masks = {name: shard_like(mask, parameters[name]) for name, mask in masks.items()}
        self.seed = int(seed)  # also where it is numpy's, which a checkpoint could not hold
        self.init = init
        self.version = 0
        self.counts_moved = False  # has a method ever changed the number of active weights of a layer?
        self.dense_grad_needed = False
        self.active_grads: set[Tensor] = set()  # parameters whose gradient may come as an `ActiveTensor`
        self.copies: Copies = TorchCopies()  # `accelerate` puts faster ones here
        self._active = {name: int(mask.sum()) for name, mask in masks.items()}
        self._ever = {name: pack(local(mask)) for name, mask in self.masks.items()}
        self._entries: dict[str, tuple[int, ActiveEntries]] = {}
        self._owner: weakref.ref[Any] | None = None

    def active(self, name: str | None = None) -> int:
        """Number of active weights of a layer, or of the network."""
        return sum(self._active.values()) if name is None else self._active[self._known(name)]

    def size(self, name: str | None = None) -> int:
        """Number of possible weights of a layer, or of all sparsifiable layers."""
        return sum(layer.size for layer in self.layers.values()) if name is None else self._layer(name).size

    def sparsity(self, name: str | None = None) -> float:
        """Share of zeros, in one layer or over all sparsifiable weights."""
        return 1 - self.active(name) / self.size(name)

    def active_entries(self, name: str) -> ActiveEntries:
        """The active entries of a layer's tensors under the mask in force: this rank's part."""
        version, entries = self._entries.get(self._known(name), (None, None))
        if entries is None or version != self.version:
            entries = ActiveEntries(local(self.masks[name]))
            self._entries[name] = (self.version, entries)
        return entries

    def fan_in(self, name: str) -> Tensor:
        """Number of active incoming weights of each neuron of a layer."""
        return self._layer(name).by_neuron(whole(self.masks[name])).sum(1)

    def neuron_sparsity(self, name: str) -> Tensor:
        """s_i = 1 - fan_in_i / N of each neuron of a layer, in float64."""
        return 1 - self.fan_in(name).double() / self._layer(name).inputs

    def dead_neurons(self, name: str | None = None) -> int:
        """Number of neurons without a single input, in one layer or in all."""
        if name is None:
            return sum(self.dead_neurons(each) for each in self.layers)
        return int((self.fan_in(name) == 0).sum())

    def itop_rate(self) -> float:
        """Share of the sparsifiable weights that were active at some time (in-time over-parameterisation)."""
        return sum(int(self._ever_active(name).sum()) for name in self.layers) / self.size()

    def summary(self) -> str:
        """A table a person can read: one row a layer, then the network."""
        from sparseopt.topology.summary import summarise

        return summarise(self)

    @torch.no_grad()
    def apply(self, names: Iterable[str] | None = None) -> None:
        """Set every inactive weight, of the layers named or of all, to exactly zero."""
        for name in self.masks if names is None else names:
            local(self.parameters[name].detach()).masked_fill_(~local(self.masks[name]), 0)

    def replace(
        self, masks: Mapping[str, Tensor], counts: Mapping[str, int] | None = None, *, start: bool = False
    ) -> None:
        """Put new masks, given whole, in force.

        Each must have exactly as many active weights as `counts` says; without that, as many as the one it replaces. With
        `start` it is as if training began with them: what was active before does not count for the ITOP rate.
        """
        if not masks:
            return
        wanted = {name: self._active[name] if counts is None else counts[name] for name in masks}
        found = torch.stack([mask.sum() for mask in masks.values()]).tolist()
        for name, count in zip(masks, found, strict=True):
            if count != wanted[name]:
                raise ValueError(
                    f"the new mask of {name!r} has {count} active weights, not {wanted[name]}, and had "
                    f"{self._active[name]}: a method must grow as many weights as it drops, or ask for other counts"
                )
        self.counts_moved |= any(self._active[name] != count for name, count in wanted.items())
        self._active.update(wanted)
        for name, mask in masks.items():
            self.masks[name] = shard_like(mask, self.parameters[name])
            packed = pack(local(self.masks[name]))
            self._ever[name] = packed if start else self._ever[name] | packed
        self.version += 1

    def follow_parameters(self) -> None:
        """Move masks and union to the devices the parameters are on now."""
        for name, parameter in self.parameters.items():
            if self.masks[name].device != parameter.device:
                self.masks[name] = self.masks[name].to(parameter.device)
                self._entries.pop(name, None)
                self._ever[name] = self._ever[name].to(parameter.device)

    def state_dict(self) -> dict[str, Any]:
        """Masks and ITOP union, bit-packed, and the seed: tensors and plain values only."""
        layers = {
            name: {
                "shape": list(layer.shape),
                "mask": pack(whole(self.masks[name])),
                "ever": pack(self._ever_active(name)),
            }
            for name, layer in self.layers.items()
        }
        about = {"seed": self.seed, "init": self.init, "counts_moved": self.counts_moved}
        return {"format": FORMAT, **about, "layers": layers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over masks, ITOP union and seed. A state of another topology is refused and changes nothing.

        Weights are cut in the layers whose mask changes, and in no other: trainers that load a checkpoint's weights first
        may then load the optimizer's own state back into it, before they load the checkpoint's.
        """
        self.check_state_dict(state)
        self.follow_parameters()
        before = dict(self.masks)
        for name, layer in self.layers.items():
            saved, parameter = state["layers"][name], self.parameters[name]
            self.masks[name] = shard_like(unpack(saved["mask"], layer.shape), parameter)
            self._ever[name] = pack(local(shard_like(unpack(saved["ever"], layer.shape), parameter)))
            self._active[name] = int(unpack(saved["mask"], layer.shape).sum())
        self.seed, self.init = state["seed"], state["init"]
        self.counts_moved = state.get("counts_moved", False)
        self.version += 1
        self.apply(name for name in before if not torch.equal(local(before[name]), local(self.masks[name])))

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless `load_state_dict` could take this state."""
        if state.get("format") != FORMAT:
            raise ValueError(
                f"topology state has format {state.get('format')!r}; this version reads {FORMAT}"
            )
        saved = state["layers"]
        if set(saved) != set(self.layers):
            only_saved, only_here = (
                sorted(set(saved) - set(self.layers)),
                sorted(set(self.layers) - set(saved)),
            )
            raise ValueError(
                f"state of another topology: only in the state {only_saved}, only here {only_here}"
            )
        for name, layer in self.layers.items():
            if tuple(saved[name]["shape"]) != layer.shape:
                raise ValueError(
                    f"state of another topology: {name!r} has shape {tuple(saved[name]['shape'])} in the state, "
                    f"{layer.shape} here"
                )
            count = int(unpack(saved[name]["mask"], layer.shape).sum())
            if count != self._active[name] and not (self.counts_moved or state.get("counts_moved")):
                raise ValueError(
                    f"state of another topology: {name!r} has {count} active weights in the state, "
                    f"{self._active[name]} here; sparsify the model as it was when the state was saved"
                )

    def claim(self, owner: object) -> None:
        """Let one optimizer move this topology; refuse a second one while the first is alive."""
        if self._owner is not None and self._owner() not in (None, owner):
            raise ValueError(
                "this topology already belongs to a SparseOpt optimizer; use that one, or make a new topology "
                "for another model with sparsify"
            )
        self._owner = weakref.ref(owner)

    def claimed(self) -> bool:
        return self._owner is not None and self._owner() is not None

    def __getstate__(self) -> dict[str, Any]:
        # The copy of the optimizer claims the copy of the topology; the copied tensors are other tensors.
        return {
            **self.__dict__,
            "_owner": None,
            "_entries": {},
            "copies": TorchCopies(),
            "active_grads": set(),
        }

    def __repr__(self) -> str:
        return (
            f"Topology({len(self.layers)} layers, {self.active():,} of {self.size():,} weights active, "
            f"sparsity {self.sparsity():.4f})"
        )

    def _ever_active(self, name: str) -> Tensor:
        """Mask of all weights of a layer that were active at some time."""
        part = unpack(self._ever[name], local(self.masks[name]).shape)
        return gather(part, self.parameters[name])

    def _layer(self, name: str) -> Layer:
        return self.layers[self._known(name)]

    def _known(self, name: str) -> str:
        if name not in self.layers:
            raise KeyError(f"no sparse layer named {name!r}; the layers are {', '.join(self.layers)}")
        return name
