"""Gradients on dense storage are held to their masks when they arrive, so that users see, and clip, what the step will use.

A hook in the midst of a backward pass costs far more than what it does, for its code and its data have been driven out of the
caches. So the hook of a parameter does next to nothing: the first one that runs asks autograd for a call when the pass is over,
which masks all gradients at once. Where ranks average gradients as they arrive, these are masked one by one before that.
"""

import weakref
from functools import partial

import torch
from torch import Tensor
from torch import distributed as dist

from sparseopt.topology import Topology
from sparseopt.topology.storage import Dense, hold


class Arrivals:
    """Of the gradients of one topology, for as long as its optimizer has this object."""

    def __init__(self, topology: Topology) -> None:
        self._grads = topology.dense_grads
        self._dense = [each for each in topology.storage.values() if isinstance(each, Dense)]
        self._pass: int | None = None  # the backward pass at whose end a call has been asked for
        for storage in self._dense:
            if storage.parameter.requires_grad:
                hook = partial(_arrived, weakref.ref(self), weakref.ref(storage))
                storage.parameter.register_post_accumulate_grad_hook(hook)

    def arrived(self, storage: Dense) -> None:
        this = torch._C._current_graph_task_id()
        if self._pass == this:
            return
        if dist.is_available() and dist.is_initialized():
            self._hold([storage])
        else:
            self._pass = this
            torch.autograd.Variable._execution_engine.queue_callback(partial(self._hold, self._dense))

    def _hold(self, arrived: list[Dense]) -> None:
        """Hold gradients to their masks, unless all of them is wanted."""
        if not self._grads.wanted:
            hold((grad, each.part) for each in arrived if (grad := each.parameter.grad) is not None)
            self._grads.masked = True


def _arrived(arrivals: "weakref.ref[Arrivals]", storage: "weakref.ref[Dense]", _: Tensor) -> None:
    owner, layer = arrivals(), storage()
    if owner is not None and layer is not None:
        owner.arrived(layer)
