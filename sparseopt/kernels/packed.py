"""The active weights of a layer for one pass: read from the dense parameter before it, their gradient written back after it."""

from torch import Tensor

from sparseopt.kernels.build import operators
from sparseopt.kernels.memory import floats, zeros


def gather(weight: Tensor, position: Tensor) -> Tensor:
    """The active values of a dense weight, in the order of memory."""
    values = floats(*position.shape)
    operators().gather(weight.detach().contiguous(), position, values)
    return values


def scatter(values: Tensor, position: Tensor, weight: Tensor) -> Tensor:
    """A dense gradient: `values` at the active positions, zero elsewhere."""
    dense = zeros(*weight.shape)
    operators().scatter(values, position, dense)
    return dense
