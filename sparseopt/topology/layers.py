"""One sparse weight tensor, and what a neuron is in it.

A neuron is one output unit: a row of a Linear weight, an output channel of a convolution. Its incoming weights lie along
axis 0 of the tensor, except in transposed convolutions, whose weights are (in, out / groups, *kernel): there axis 1 counts the
outputs of one group, and the groups divide axis 0.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class Layer:
    """One sparsifiable weight tensor: its name, its shape, and where its neurons are.

    Args:
        name: name of the parameter in the model.
        shape: shape of the weight.
        transposed: are the neurons in the second dimension, as in a transposed convolution?
        groups: groups of a convolution.
        norm_dim: dimension whose slices weight_norm divides by their norms, -1 if all by one; None without weight_norm.
        beside: name of the weight that leads to the same neurons, as weight_hh does beside weight_ih in a recurrent layer.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool = False
    groups: int = 1
    norm_dim: int | None = None
    beside: str | None = None

    @property
    def size(self) -> int:
        """Number of possible weights."""
        return math.prod(self.shape)

    @property
    def neurons(self) -> int:
        return self.groups * self.shape[1] if self.transposed else self.shape[0]

    @property
    def inputs(self) -> int:
        """Number of possible incoming weights of one neuron (N in the paper)."""
        return self.size // self.neurons

    @property
    def least(self) -> int:
        """Active weights that it cannot do without: one, or under weight_norm one for each norm."""
        return 1 if self.norm_dim is None or self.norm_dim < 0 else self.shape[self.norm_dim]

    def by_neuron(self, tensor: Tensor) -> Tensor:
        """A tensor of this layer's shape as a (neurons, inputs) matrix; a view where the layout allows it."""
        if not self.transposed:
            return tensor.reshape(self.neurons, -1)
        # (groups, in / groups, out / groups, kernel)
        grouped = tensor.reshape(self.groups, self.shape[0] // self.groups, self.shape[1], -1)
        return grouped.transpose(1, 2).reshape(self.neurons, -1)

    def from_neurons(self, matrix: Tensor) -> Tensor:
        """The inverse of `by_neuron`: a (neurons, inputs) matrix as a tensor of this layer's shape."""
        if not self.transposed:
            return matrix.reshape(self.shape)
        per_group = matrix.reshape(self.groups, self.shape[1], self.shape[0] // self.groups, -1)
        return per_group.transpose(1, 2).reshape(self.shape)

    def slices(self, tensor: Tensor) -> Tensor:
        """A tensor of this layer's shape as a matrix of one row for each norm that weight_norm takes."""
        if self.norm_dim is None or self.norm_dim < 0:
            return tensor.reshape(1, -1)
        return tensor.movedim(self.norm_dim, 0).flatten(1)

    def from_slices(self, matrix: Tensor) -> Tensor:
        """The inverse of `slices`."""
        if self.norm_dim is None or self.norm_dim < 0:
            return matrix.reshape(self.shape)
        rest = [size for dim, size in enumerate(self.shape) if dim != self.norm_dim]
        return matrix.reshape(self.shape[self.norm_dim], *rest).movedim(0, self.norm_dim)

    def neuron_of(self, index: Tensor) -> Tensor:
        """The neuron that each of these flat positions of the weight leads to."""
        if not self.transposed:
            return index // self.inputs
        kernel = math.prod(self.shape[2:])
        group = index // (self.size // self.groups)
        return group * self.shape[1] + index // kernel % self.shape[1]

    def broadcast(self, per_neuron: Tensor) -> Tensor:
        """One number a neuron, in a shape that broadcasts against the layer's weights."""
        trailing = [1] * (len(self.shape) - 2)
        if not self.transposed:
            return per_neuron.view(-1, 1, *trailing)
        by_group = per_neuron.view(self.groups, 1, -1)
        if self.groups > 1:  # every input row of a group meets that group's outputs
            by_group = by_group.expand(-1, self.shape[0] // self.groups, -1)
        return by_group.reshape(-1, self.shape[1], *trailing)


class LeftDense(NamedTuple):
    """A parameter that sparsify leaves dense, its size and the reason."""

    name: str
    size: int
    why: str
