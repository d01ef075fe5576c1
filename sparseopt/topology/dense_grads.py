"""State shared by the optimizer and the backward pass: is the gradient of inactive weights needed, and where is it?

Most steps have no use for it. Some do (RigL's updates, the paper's clipping), and the optimizer says so before the backward
pass: `wanted`. Then whoever computes the gradient of a layer delivers all of it:

- On dense storage it simply is `parameter.grad`, which at all other steps is zero outside the mask as soon as it is there. Where
  a method lets some inactive weights learn, and reads no other gradient, it is zero outside these (`learning`).
- On packed storage `parameter.grad` has the active entries alone. The dense gradient is given here, once for every backward
  pass, as a function that computes rows of it: the step asks for one block of rows after the other.

What was given is cleared by `zero_grad`, by the step, and where another state is loaded.
"""

import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils.weak import TensorWeakRef

Rows = Callable[[slice], Tensor]  # of a dense gradient, along its first axis

BLOCK = 1 << 19  # entries


class DenseGradients:
    """One for a topology. `wanted`: must the next backward pass deliver the gradient of inactive weights?"""

    live: ClassVar["weakref.WeakValueDictionary[int, DenseGradients]"] = weakref.WeakValueDictionary()
    _keys = itertools.count()

    def __init__(self) -> None:
        self.key = next(self._keys)  # by which compiled code finds it
        self.live[self.key] = self
        self.wanted = False
        self.learning: Mapping[str, Tensor] = {}
        """Masks of all weights that learn, by layer, this rank's part: no other gradient is wanted. Empty: all of it is."""
        self.values: weakref.WeakValueDictionary[str, Tensor] = (
            weakref.WeakValueDictionary()
        )  # of packed layers
        self._given: dict[str, list[Rows]] = {}
        self._pending: dict[str, tuple[int, list[Rows]]] = {}  # with the pass, until its gradient has arrived
        self._awaited: dict[str, TensorWeakRef] = {}  # parameters that tell of it
        self.told_beyond = False  # was it said that loaded weights are left out?
        self.masked = False  # have gradients on dense storage been held to their masks?
        self.held: dict[Tensor, tuple[TensorWeakRef, int]] = {}  # which, and how often changed by then
        self.spent: dict[Tensor, tuple[TensorWeakRef, int]] = {}  # those that the step before has used

    @contextmanager
    def all_wanted(self) -> Iterator[None]:
        """Whatever the next step reads, backward passes in this block deliver the gradient of every weight."""
        before = self.wanted, self.learning
        self.wanted, self.learning = True, {}
        try:
            yield
        finally:
            self.wanted, self.learning = before

    def give(self, name: str, rows: Rows) -> None:
        """Deliver what one use of a packed layer adds to its dense gradient.

        It counts when the pass adds to the parameter's own gradient, which `torch.autograd.grad` does not. Where there is none
        yet, what earlier passes gave is forgotten as their gradient was.
        """
        values = self.values.get(name)
        if values is None:
            self._given.setdefault(name, []).append(rows)
            return
        if values.grad is None:
            self._given.pop(name, None)
        this = torch._C._current_graph_task_id()
        task, pending = self._pending.get(name, (this, []))
        self._pending[name] = (this, [*(pending if task == this else ()), rows])
        awaited = self._awaited.get(name)
        if awaited is None or awaited() is not values:
            self._awaited[name] = TensorWeakRef(values)
            values.register_post_accumulate_grad_hook(partial(_arrived, self.key, name))

    def arrived(self, name: str) -> None:
        """The gradient of the parameter has grown by what this backward pass has found."""
        task, pending = self._pending.pop(name, (None, []))
        if task == torch._C._current_graph_task_id():
            self._given.setdefault(name, []).extend(pending)

    def given(self, name: str) -> list[Rows]:
        """What backward passes on this rank have given for a packed layer: the gradient is their sum."""
        return self._given.get(name, [])

    def note_held(self, parameters: Iterable[Tensor]) -> None:
        """The gradients that are there have just been held to their masks."""
        self.held = _as_they_are(parameters)

    def note_spent(self, parameters: Iterable[Tensor]) -> None:
        """The gradients that are there have just been used by a step."""
        self.spent = _as_they_are(parameters)

    def holds(self, parameter: Tensor) -> bool:
        """Is its gradient the one that was held to the mask, and unchanged since?"""
        return _is_as_it_was(parameter, self.held)

    def is_spent(self, parameter: Tensor) -> bool:
        """Is its gradient still the one that the step before has used?"""
        return _is_as_it_was(parameter, self.spent)

    def forget(self) -> None:
        self._given.clear()
        self._pending.clear()
        self.held.clear()
        self.masked = False

    def __deepcopy__(self, memo: dict[int, object]) -> "DenseGradients":
        return DenseGradients()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return DenseGradients, ()


def _arrived(key: int, name: str, _: Tensor) -> None:
    grads = DenseGradients.live.get(key)
    if grads is not None:
        grads.arrived(name)


def _as_they_are(parameters: Iterable[Tensor]) -> dict[Tensor, tuple[TensorWeakRef, int]]:
    there = ((each, each.grad) for each in parameters)
    return {each: (TensorWeakRef(grad), grad._version) for each, grad in there if grad is not None}


def _is_as_it_was(parameter: Tensor, noted: Mapping[Tensor, tuple[TensorWeakRef, int]]) -> bool:
    grad, (found, version) = parameter.grad, noted.get(parameter, (None, 0))
    return found is not None and grad is not None and version == grad._version and found() is grad


def row_blocks(shape: torch.Size | tuple[int, ...]) -> Iterator[slice]:
    """The blocks of rows in which a gradient is computed, whoever asks: rounding may depend on them."""
    step = max(1, BLOCK // max(1, math.prod(shape[1:])))
    return (slice(first, min(first + step, shape[0])) for first in range(0, shape[0], step))


def join(rows: Rows, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """The whole gradient."""
    first, *others = row_blocks(shape)
    block = rows(first)
    if not others:
        return block
    joined = block.new_empty(shape)
    joined[first] = block
    for each in others:
        joined[each] = rows(each)
    return joined


def ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def average_over_ranks(gradient: Tensor) -> Tensor:
    """The mean over all ranks, which is what data parallelism makes of every other gradient."""
    if ranks() > 1:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        gradient /= ranks()
    return gradient


def is_finite(gradient: Tensor) -> bool:
    """Is every entry finite? Nothing of the gradient's size is made."""
    return bool(torch.linalg.vector_norm(gradient, float("inf")).isfinite())
