"""Who is connected to whom: the masks of a network, and everything that can be read off them.

A `Topology` refers to the model's own parameters, kept dense or packed (see `sparseopt.topology.storage`). Masks change through
`replace` alone: it holds the counts to what they were, keeps the union of all masks (behind the ITOP rate of Liu et al. 2021) at
one bit a weight, and counts a version up, by which whoever caches something derived from the masks notices.
"""

import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sparseopt.topology.bits import unpack
from sparseopt.topology.dense_grads import DenseGradients
from sparseopt.topology.heap import give_back
from sparseopt.topology.layers import Layer, LeftDense
from sparseopt.topology.storage import Packed, Storage

FORMAT = 1


class Masks(Mapping[str, Tensor]):
    """The mask of every layer, by name, to read; that of a packed one is made when it is asked for."""

    def __init__(self, storage: Mapping[str, Storage]) -> None:
        self._storage = storage

    def __getitem__(self, name: str) -> Tensor:
        return self._storage[name].mask

    def __setitem__(self, name: str, mask: Tensor) -> None:
        raise TypeError(
            "masks are read here and changed by topology.replace({name: mask}), which keeps count"
        )

    def __contains__(self, name: object) -> bool:
        return name in self._storage

    def __iter__(self) -> Iterator[str]:
        return iter(self._storage)

    def __len__(self) -> int:
        return len(self._storage)


class Topology:
    """Masks of a network and what follows from them; made by `sparsify`, moved by a method through `SparseOpt`.

    `storage` says how each layer is kept; `dense_grads` is how an optimizer asks for the gradient of inactive weights.

    Args:
        storage: how each layer is kept, by the name of its parameter.
        dense_grads: how an optimizer asks for the gradient of inactive weights.
        seed: decides every random draw of the method.
        init: "sparse" where the weights were drawn by fan-in.
        normed: names of the layers whose output goes into BatchNorm.
        left_dense: the parameters of the model that are not sparse, and why.
    """

    def __init__(
        self,
        storage: Mapping[str, Storage],
        dense_grads: DenseGradients,
        *,
        seed: int = 0,
        init: str | None = None,
        normed: Collection[str] = (),
        left_dense: Iterable[LeftDense] = (),
    ) -> None:
        self.storage = dict(storage)
        self.dense_grads = dense_grads
        self.layers = {name: each.layer for name, each in storage.items()}
        self.parameters = {name: each.parameter for name, each in storage.items()}
        self.seed = int(seed)  # also where it is numpy's, which a checkpoint could not hold
        self.init = init
        self.normed = frozenset(normed)  # the layers whose output goes into BatchNorm
        self.left_dense = tuple(left_dense)  # the other parameters of the model
        self.version = 0
        self.counts_moved = False  # has a method ever changed the number of active weights of a layer?
        self._active = {name: each.active() for name, each in storage.items()}
        self._owner: weakref.ref[Any] | None = None

    @property
    def masks(self) -> Mapping[str, Tensor]:
        """The masks in force, {name: bool tensor}."""
        return Masks(self.storage)

    def active(self, name: str | None = None) -> int:
        """Number of active weights of a layer, or of the network."""
        return sum(self._active.values()) if name is None else self._active[self._known(name)]

    def size(self, name: str | None = None) -> int:
        """Number of possible weights of a layer, or of all sparsifiable layers."""
        return sum(layer.size for layer in self.layers.values()) if name is None else self._layer(name).size

    def sparsity(self, name: str | None = None) -> float:
        """Share of zeros, in one layer or over all sparsifiable weights."""
        return 1 - self.active(name) / self.size(name)

    def fan_in(self, name: str) -> Tensor:
        """Number of active incoming weights of each neuron of a layer."""
        return self.storage[self._known(name)].fan_in()

    def neuron_sparsity(self, name: str) -> Tensor:
        """s_i = 1 - fan_in_i / N of each neuron of a layer, in float64."""
        return 1 - self.fan_in(name).double() / self._layer(name).inputs

    def dead_neurons(self, name: str | None = None) -> int:
        """Number of neurons without a single input, in one layer or in all.

        The gates of a recurrent layer are neurons of two weights, and dead where neither has an input for them.
        """
        if name is None:
            return sum(self.dead_neurons(each) for each in self._apart())
        dead, beside = self.fan_in(name) == 0, self.layers[name].beside
        if beside is not None:  # a weight that is not among the layers is dense
            dead &= self.fan_in(beside) == 0 if beside in self.layers else False
        return int(dead.sum())

    def neurons(self) -> int:
        """Number of neurons of all layers; those that two weights lead to count once."""
        return sum(self.layers[name].neurons for name in self._apart())

    def _apart(self) -> list[str]:
        """The layers, of two that lead to the same neurons the first."""
        order = {name: at for at, name in enumerate(self.layers)}
        return [name for name, at in order.items() if order.get(self.layers[name].beside or "", at) >= at]

    def itop_rate(self) -> float:
        """Share of the sparsifiable weights that were active at some time (in-time over-parameterisation)."""
        ever = (unpack(self.storage[name].ever_bits(), layer.shape) for name, layer in self.layers.items())
        return sum(int(mask.sum()) for mask in ever) / self.size()

    def weight(self, name: str) -> Tensor:
        """The whole dense weight of a layer, zeros included, whatever its storage."""
        storage = self.storage[self._known(name)]
        return storage.to_dense(storage.parameter.detach())

    def summary(self) -> str:
        """A table a person can read: one row a layer, then the network."""
        from sparseopt.topology.summary import summarise

        return summarise(self)

    @torch.no_grad()
    def apply(self) -> None:
        """Set every inactive weight to exactly zero."""
        for each in self.storage.values():
            each.apply()

    def replace(
        self,
        masks: Mapping[str, Tensor],
        counts: Mapping[str, int] | None = None,
        tensors: Mapping[str, Iterable[Tensor]] | None = None,
        *,
        start: bool = False,
    ) -> None:
        """Put new masks, given whole, in force.

        Each must have exactly as many active weights as `counts` says; without that, as many as the one it replaces. Entries
        that were dropped or grown are zero afterwards in the layer's `tensors`: its parameter, and what an optimizer keeps in
        that shape; without them, in its parameter. With `start` it is as if training began with the masks: what was active
        before does not count for the ITOP rate.
        """
        if not masks:
            return
        wanted = {name: self._active[name] if counts is None else counts[name] for name in masks}
        first = next(iter(masks.values())).device
        by_mask = (
            new.sum() if new.dtype == torch.bool else torch.tensor(new.numel()) for new in masks.values()
        )
        found = torch.stack([count.to(first) for count in by_mask]).tolist()  # waits for the device once
        for name, count in zip(masks, found, strict=True):
            if count != wanted[name]:
                raise ValueError(
                    f"the new mask of {name!r} has {count} active weights, not {wanted[name]}, and had "
                    f"{self._active[name]}: a method must grow as many weights as it drops, or ask for other counts"
                )
        for packed in filter(None, map(self.packed, masks)):
            packed.scatter.check_copies()
        self.counts_moved |= any(self._active[name] != count for name, count in wanted.items())
        self._active.update(wanted)
        for name, mask in masks.items():
            entries = [self.parameters[name].detach()] if tensors is None else tensors.get(name, ())
            self.storage[name].replace(mask, entries, start=start)
        if self.kind() == "packed":
            give_back()
        self.version += 1

    def follow_parameters(self) -> bool:
        """Move masks and union to the devices the parameters are on now. Was any of these another one, or its precision?"""
        moved = [each.follow() for each in self.storage.values()]
        return any(moved)

    def state_dict(self) -> dict[str, Any]:
        """Masks and ITOP union, bit-packed, and the seed: tensors and plain values only."""
        layers = {
            name: {
                "shape": list(layer.shape),
                "mask": self.storage[name].bits(),
                "ever": self.storage[name].ever_bits(),
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
        for name, layer in self.layers.items():
            saved = state["layers"][name]
            self.storage[name].load(*(unpack(saved[record], layer.shape) for record in ("mask", "ever")))
            self._active[name] = self.storage[name].active()
        self.seed, self.init = state["seed"], state["init"]
        self.counts_moved = state.get("counts_moved", False)
        self.version += 1

    def differing(self, state: Mapping[str, Any]) -> list[str]:
        """The layers that have other masks in a state than here."""
        layers = state["layers"].items()
        return [
            name
            for name, saved in layers
            if not torch.equal(saved["mask"].cpu(), self.storage[name].bits().cpu())
        ]

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless `load_state_dict` could take this state."""
        if not isinstance(state, Mapping) or state.get("format") != FORMAT:
            found = state.get("format") if isinstance(state, Mapping) else state
            raise ValueError(f"topology state has format {found!r}; this version reads {FORMAT}")
        saved = state.get("layers", {})
        if set(saved) != set(self.layers):
            raise ValueError(
                f"state of another topology: only in the state {sorted(set(saved) - set(self.layers))}, "
                f"only here {sorted(set(self.layers) - set(saved))}{_wrapped(saved, self.layers)}"
            )
        if not isinstance(state.get("seed"), int) or "init" not in state:
            raise ValueError(f"topology state has seed {state.get('seed')!r} and init {state.get('init')!r}")
        counts_may_differ = self.counts_moved or bool(state.get("counts_moved"))
        for name in self.layers:
            self._check_layer(name, saved[name], counts_may_differ)

    def _check_layer(self, name: str, saved: Mapping[str, Any], counts_may_differ: bool) -> None:
        layer = self.layers[name]
        shape = tuple(saved.get("shape", ()))
        if shape != layer.shape:
            raise ValueError(
                f"state of another topology: {name!r} has shape {shape} in the state, {layer.shape} here"
            )
        for record in ("mask", "ever"):
            bits = saved.get(record)
            octets = -(-layer.size // 8)
            if not isinstance(bits, Tensor) or bits.dtype != torch.uint8 or bits.shape != (octets,):
                found = f"{tuple(bits.shape)} {bits.dtype}" if isinstance(bits, Tensor) else repr(bits)
                raise ValueError(
                    f"damaged topology state: {record!r} of {name!r} must be {octets} bytes, got {found}"
                )
        count = int(unpack(saved["mask"], layer.shape).sum())
        if count != self._active[name] and not counts_may_differ:
            raise ValueError(
                f"state of another topology: {name!r} has {count} active weights in the state, "
                f"{self._active[name]} here; sparsify the model as it was when the state was saved"
            )

    def kind(self) -> str:
        """How the layers are kept: "dense" or "packed"."""
        return next(iter(self.storage.values())).kind

    def packed(self, name: str) -> Packed | None:
        """The storage of a layer that is packed; None if it is not, or not sparse."""
        storage = self.storage.get(name)
        return storage if isinstance(storage, Packed) else None

    def claim(self, owner: object) -> None:
        """Let one optimizer move this topology; refuse a second one while the first is alive."""
        if self._owner is not None and self._owner() not in (None, owner):
            raise ValueError(
                "this topology already belongs to a SparseOpt optimizer, which is alive as long as somebody refers to it (a "
                "scheduler, too): set its `method` to train on by another one, or make a new topology, "
                "sparsify(copy.deepcopy(model), masks=dict(topology.masks))"
            )
        self._owner = weakref.ref(owner)

    def claimed(self) -> bool:
        return self._owner is not None and self._owner() is not None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": None}  # the copy of the optimizer claims the copy of the topology

    def __repr__(self) -> str:
        layers = f"{len(self.layers)} layer{'' if len(self.layers) == 1 else 's'}"
        return (
            f"Topology({layers}, {self.active():,} of {self.size():,} weights active, "
            f"sparsity {self.sparsity():.4f})"
        )

    def _layer(self, name: str) -> Layer:
        return self.layers[self._known(name)]

    def _known(self, name: str) -> str:
        if name not in self.layers:
            raise KeyError(f"no sparse layer named {name!r}; the layers are {', '.join(self.layers)}")
        return name


def _wrapped(saved: Iterable[str], here: Iterable[str]) -> str:
    """What to do about names that differ by a wrapper's prefix alone."""
    plain = [
        {name.replace("_orig_mod.", "").removeprefix("module.") for name in names} for names in (saved, here)
    ]
    if plain[0] != plain[1]:
        return ""
    return (
        "; one of the models, or a module in it, was wrapped by torch.compile or DDP when it was made sparse: "
        "sparsify it before that"
    )
