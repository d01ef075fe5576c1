"""Gradients of the kernels, which cannot be differentiated themselves."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]

TWICE = (
    b"the kernels' gradients cannot be differentiated again, as penalties on gradients (WGAN-GP, R1) ask for: use the model "
    b"without accelerate there"
)


def differentiated_once(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """As torch's `once_differentiable`, which refuses only where an incoming gradient is differentiable itself: the gradient of a
    sum is not, and its derivatives would be taken for zero."""

    @functools.wraps(backward)
    def refusing(ctx: Any, *gradients: Tensor | None) -> Gradients:
        wanted = torch.is_grad_enabled()  # that is what create_graph=True means here
        with torch.no_grad():
            found = backward(ctx, *gradients)
        there = [each for each in found if each is not None]
        if not wanted or not there:
            return found
        refuse = torch._C._functions.DelayedError(TWICE, len(there))  # pyright: ignore[reportAttributeAccessIssue]
        made = refuse(*(each.detach().requires_grad_() for each in there))
        marked = iter(made if isinstance(made, tuple) else (made,))
        return tuple(None if each is None else next(marked) for each in found)

    return refusing
