"""The active weights of a layer for one pass: read from the dense parameter before it, their gradient written back after it."""

import torch
from torch import Tensor

from sparseopt.kernels.build import operators


def gather(weight: Tensor, position: Tensor) -> Tensor:
    """The active values of a dense weight, in the order of memory."""
    values = torch.empty(position.shape)
    operators().gather(weight.detach().contiguous(), position, values)
    return values


def scatter(values: Tensor, position: Tensor, weight: Tensor) -> Tensor:
    """A dense gradient: `values` at the active positions, zero elsewhere."""
    dense = torch.zeros(weight.shape)
    operators().scatter(values, position, dense)
    return dense
