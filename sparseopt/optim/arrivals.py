"""Gradients on dense storage are held to their masks when they arrive, so that users see, and clip, what the step will use.

A hook in the midst of a backward pass costs far more than what it does, for its code and its data have been driven out of the
caches. So one hook a pass does anything: the first that runs asks autograd for a call when the pass is over, which masks all
gradients at once, and takes the others away until then. Where ranks average gradients as they arrive, these are masked one by
one before that.
"""

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from sparseopt.topology import Topology
from sparseopt.topology.storage import Dense, hold


class Arrivals:
    """Of the gradients of one topology, for as long as its optimizer has this object."""

    def __init__(self, topology: Topology) -> None:
        self._grads = topology.dense_grads
        self._hook = partial(_arrived, weakref.ref(self))
        self._dense: dict[Tensor, Dense] = {}
        self._hooks: dict[Tensor, tuple[dict[int, Any], int]] = {}  # of each parameter, and the key of ours
        self._topology = topology
        self.await_all()

    def await_all(self) -> None:
        """Also of the layers that were frozen before."""
        for storage in self._topology.storage.values():
            parameter = storage.parameter
            if isinstance(storage, Dense) and parameter.requires_grad and parameter not in self._dense:
                handle = parameter.register_post_accumulate_grad_hook(self._hook)
                self._dense[parameter] = storage
                self._hooks[parameter] = (handle.hooks_dict_ref(), handle.id)  # pyright: ignore[reportArgumentType]

    def arrived(self, parameter: Tensor) -> None:
        if dist.is_available() and dist.is_initialized():
            self._hold([parameter])
            return
        for other, (hooks, key) in self._hooks.items():
            if other is not parameter:  # should this pass fail, the next is noticed all the same
                hooks.pop(key, None)
        torch.autograd.Variable._execution_engine.queue_callback(self._all_arrived)

    def _all_arrived(self) -> None:
        for hooks, key in self._hooks.values():
            hooks[key] = self._hook
        if self._hold(self._dense):
            self._grads.note_held(self._dense)

    def _hold(self, parameters: Iterable[Tensor]) -> bool:
        """Hold gradients to their masks, or to what else learns, unless all of them is wanted. Was that done?"""
        if self._grads.wanted and not self._grads.learning:
            return False
        hold((each.grad, self._mask(self._dense[each])) for each in parameters if each.grad is not None)
        self._grads.masked = True
        return True

    def _mask(self, storage: Dense) -> Tensor:
        learning = self._grads.learning.get(storage.layer.name) if self._grads.wanted else None
        return storage.part if learning is None else learning.view(torch.uint8)


def _arrived(arrivals: "weakref.ref[Arrivals]", parameter: Tensor) -> None:
    owner = arrivals()
    if owner is not None:
        owner.arrived(parameter)
