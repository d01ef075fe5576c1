"""Is a frozen program the model? Where its Python could not be proven to do the same at every call, calls are compared.

A trace shows a model values that stand for others. Python that asks such a value whether it is None, a tensor, or of some class
gets an answer that no call would get. So the first call of every kind (how many arguments, by which names, tensors of how many
axes) is computed by the model as well. Where the results differ, the model is right, and the engine goes on in another way.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

TOLERANCE = 1e-3  # of the largest number: the kernels add in another order


class Compared:
    """The kinds of calls in which a program has done what a `model` in evaluation mode does."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.kinds: set[object] = set()
        self.lock = Lock()

    def knows(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return _kind((args, kwargs)) in self.kinds

    def same(
        self, program: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], right: Any
    ) -> bool:
        """Does the program compute what is `right`? If it does, its next call of this kind is not compared."""
        try:
            found = alike(program(*args, **kwargs), right)
        except Exception:  # whatever the Python of a branch that no call takes may raise
            return False
        if found:
            self.kinds.add(_kind((args, kwargs)))
        return found


def _kind(value: Any) -> object:
    """What Python may ask of a value that a trace cannot answer: all but its numbers."""
    match value:
        case Tensor():
            return type(value), value.dim()
        case list() | tuple():
            return type(value), *map(_kind, value)
        case dict():
            return dict, *((key, _kind(each)) for key, each in value.items())
        case None | bool() | str():
            return value
        case _:
            return type(value)


def alike(found: Any, right: Any) -> bool:
    """Are these the same numbers, but for the order in which they were added up?"""
    ours, others = tree_leaves(found), tree_leaves(right)
    return len(ours) == len(others) and all(map(_alike, ours, others))


def _alike(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other) and (one is other or one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    largest = other.nan_to_num(0.0, 0.0, 0.0).abs().max().item() if other.numel() else 0.0
    return torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * largest, equal_nan=True)
