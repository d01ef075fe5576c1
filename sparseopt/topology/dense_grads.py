"""State shared by the optimizer and the backward pass: is the gradient of inactive weights needed, and where is it?

Most steps have no use for it. Some do (RigL's updates, the paper's clipping), and the optimizer says so before the backward
pass: `wanted`. Then whoever computes the gradient of a layer delivers all of it:

- On dense storage it simply is `parameter.grad`, which at all other steps is zero outside the mask as soon as it is there.
- On packed storage `parameter.grad` has the active entries alone. The dense gradient is given here, once for every backward
  pass, as a function that computes it: the step calls it, uses the result for one layer at a time and frees it.

What was given and not taken is cleared by `zero_grad` and by the step.
"""

import itertools
import weakref
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch import distributed as dist


class DenseGradients:
    """One for a topology. `wanted`: must the next backward pass deliver the gradient of inactive weights?"""

    live: ClassVar["weakref.WeakValueDictionary[int, DenseGradients]"] = weakref.WeakValueDictionary()
    _keys = itertools.count()

    def __init__(self) -> None:
        self.key = next(self._keys)  # by which compiled code finds it
        self.live[self.key] = self
        self.wanted = False
        self._given: dict[str, list[tuple[int, Callable[[], Tensor]]]] = {}  # with the pass
        self.masked = False  # have gradients on dense storage been held to their masks?

    def give(self, name: str, gradient: Callable[[], Tensor], parameter: Tensor | None = None) -> None:
        """Deliver what one use of a packed layer adds to its dense gradient.

        Where the layer's `parameter` has no gradient yet, what earlier passes gave is forgotten as its gradient was.
        """
        this = torch._C._current_graph_task_id()
        anew = parameter is not None and parameter.is_leaf and parameter.grad is None
        kept = [each for each in self._given.get(name, ()) if not anew or each[0] == this]
        self._given[name] = [*kept, (this, gradient)]

    def take(self, name: str) -> Tensor | None:
        """The dense gradient of a packed layer on this rank, if a backward pass has given it; forgotten here."""
        total: Tensor | None = None
        for _, gradient in self._given.pop(name, ()):
            total = gradient() if total is None else total.add_(gradient())
        return total

    def forget(self) -> None:
        self._given.clear()
        self.masked = False

    def __deepcopy__(self, memo: dict[int, object]) -> "DenseGradients":
        return DenseGradients()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return DenseGradients, ()


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
