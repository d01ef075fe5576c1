"""One pass of data through a chain of linear layers, and back.

Activations stay in tiles (see `csrc/linear.h`) from the first layer of a chain to the last, batch norm and ReLU included; the
batch is padded to whole vectors with samples whose gradient is zero. Layers up to a batch norm run in one call.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from sparseopt.kernels.match.chains import Chain
from sparseopt.kernels.native import pattern
from sparseopt.kernels.native.buffers import Buffers, Shape
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.memory import doubles, floats
from sparseopt.kernels.native.norm import Norm, NormWeights, by_parameter
from sparseopt.kernels.native.packed import NOTHING, KernelWeight, PackedWeights, weight_gradients


class ChainLists:
    """Index lists of all layers of a chain."""

    def __init__(self, weights: Sequence[KernelWeight]) -> None:
        self.shapes = [weight.shape for weight in weights]
        self.positions = [weight.position() for weight in weights]
        placed = list(zip(self.positions, self.shapes, strict=True))
        self._forward = [pattern.linear_forward(*each) for each in placed]
        self._backward = [pattern.linear_backward(*each) for each in placed]

    def forward(self, layers: slice) -> tuple[list[Tensor], list[Tensor]]:
        """Starts and offsets, as the kernels take them."""
        lists = self._forward[layers]
        return [each.start for each in lists], [each.offset for each in lists]

    def backward(self, layers: slice) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Starts, offsets and orders, as the kernels take them."""
        lists = self._backward[layers]
        return [each.start for each in lists], [each.offset for each in lists], [each.order for each in lists]


class ChainRun:
    """`activations` are the input and the outputs of all layers, `sums` what a batch norm makes such an output from."""

    def __init__(
        self, chain: Chain, weights: Sequence[KernelWeight], lists: ChainLists, memory: Buffers
    ) -> None:
        self.chain, self.weights, self.lists, self.memory = chain, weights, lists, memory
        self.values = [
            weight.values(position) for weight, position in zip(weights, lists.positions, strict=True)
        ]
        self.ops = operators()
        self.samples = 0
        self.activations: list[Tensor] = []
        self.sums: dict[int, Tensor] = {}  # by the number of the layer
        self.norms: dict[int, Norm] = {}
        self._packed_weights, self._norm_weights = PackedWeights(weights), NormWeights(chain)

    def forward(self, x: Tensor) -> Tensor:
        self.samples = len(x)
        features = (x.shape[1], *(layer.channels for layer in self.chain))
        self.activations = [self._tiles(each) for each in features]
        self.ops.tile_samples(x.detach().contiguous(), self.activations[0], repeat=True)
        for layers in self._segments():
            self._forward(layers)
        y = floats(self.samples, features[-1])
        self.ops.untile_samples(self.activations[-1], y)
        return y

    def _segments(self, *, single: bool = False) -> Iterator[slice]:
        """Layers that run in one call: up to a batch norm, or to the end; or single ones."""
        first = 0
        for last, layer in enumerate(self.chain):
            if single or layer.norm is not None or last == len(self.chain) - 1:
                yield slice(first, last + 1)
                first = last + 1

    def _tiles(self, features: int) -> Tensor:
        return self.memory.take(Shape(-(-self.samples // self.memory.lanes), 1, features, 1))

    def _give(self, tiles: Tensor) -> None:
        self.memory.give(Shape(tiles.shape[0], 1, tiles.shape[2], 1), tiles)

    def __del__(self) -> None:
        for tiles in (*self.activations, *self.sums.values()):
            self._give(tiles)

    def _forward(self, layers: slice) -> None:
        last = layers.stop - 1
        norm = self.chain[last].norm
        if norm is not None:
            self.sums[last] = self._tiles(self.chain[last].channels)
        bias = [self._bias(index) for index in range(layers.start, layers.stop)]
        self.ops.chain_forward(
            *(self.values[layers], *self.lists.forward(layers), self._relu(layers), bias, self._steps(layers))
        )
        if norm is not None:
            self._normalise(last)

    def _steps(self, layers: slice) -> list[Tensor]:
        """What the layers of a segment read and write, first to last."""
        last = layers.stop - 1
        behind = self.sums[last] if last in self.sums else self.activations[last + 1]
        return [*self.activations[layers], behind]

    def _relu(self, layers: slice) -> list[int]:
        return [int(layer.relu and layer.norm is None) for layer in self.chain[layers]]

    def _bias(self, index: int) -> Tensor:
        """What the kernel adds: batch norm has the bias among its own numbers."""
        layer = self.chain[index]
        return NOTHING if layer.norm is not None or layer.module.bias is None else layer.module.bias.detach()

    def _normalise(self, index: int) -> None:
        layer, z = self.chain[index], self.sums[index]
        norm = self.norms[index] = Norm(layer, self.ops, self.samples)
        if norm.sums is not None:
            self.ops.sum_features(z, self.samples, norm.sums)
        norm.prepare()
        self.ops.normalise(z, norm.affine, layer.relu, self.activations[index + 1])

    def backward(self, gradient: Tensor, input_wanted: bool) -> list[Tensor | None]:
        """Gradients of the input and of every layer's parameters."""
        self._packed_weights.check()
        self._norm_weights.check()
        dy = self._tiles(gradient.shape[1])
        self.ops.tile_samples(gradient.contiguous(), dy, repeat=False)
        found: dict[Tensor, Tensor] = {}
        # The gradients of what a segment's inner layers have written never leave the kernels.
        dense = any(weight.dense_wanted for weight in self.weights)
        for layers in reversed(list(self._segments(single=dense))):
            if layers.stop - 1 in self.norms:
                found |= self._norm_back(layers.stop - 1, dy)
            dx = (
                self._tiles(self.activations[layers.start].shape[2]) if layers.start or input_wanted else None
            )
            found |= self._back(layers, dy, dx)
            self._give(dy)
            if dx is not None:
                dy = dx
        of_input = None
        if input_wanted:
            of_input = self._untiled(dy)
            self._give(dy)
        parameters = parameters_of(self.chain, self.weights)
        return [of_input, *(None if each is None else found.get(each) for each in parameters)]

    def _untiled(self, tiles: Tensor) -> Tensor:
        samples = floats(self.samples, tiles.shape[2])
        self.ops.untile_samples(tiles, samples)
        return samples

    def _norm_back(self, index: int, dy: Tensor) -> dict[Tensor, Tensor]:
        """Turns the gradient of a layer's output into that of its sums, in place."""
        layer, z, norm = self.chain[index], self.sums[index], self.norms[index]
        y = self.activations[index + 1] if layer.relu else None
        sums = doubles(2, layer.channels)
        self.ops.sum_gradients(y, z, norm.affine, dy, sums)
        gradients = floats(2, layer.channels)
        coefficients, found = norm.backward(sums, gradients)
        if layer.norm is not None:
            found |= by_parameter(layer.norm, gradients[0], gradients[1])
        self.ops.normalise_backward(z, coefficients, self.samples, dy)
        return found

    def _back(self, layers: slice, dy: Tensor, dx: Tensor | None) -> dict[Tensor, Tensor]:
        """Writes the gradient of a segment's input to dx; overwrites dy."""
        of_weights = [torch.empty_like(each) for each in self.values[layers]]
        biases = [self._bias(index) for index in range(layers.start, layers.stop)]
        of_biases = [torch.empty_like(each) for each in biases]
        self.ops.chain_backward(
            *(dy, self.values[layers], *self.lists.backward(layers), self._relu(layers), self._steps(layers)),
            *(dx, of_weights, of_biases),
        )
        weights, indices = self.weights[layers], range(layers.start, layers.stop)
        dense = [
            partial(outer, self._untiled(dy), self._untiled(self.activations[index]))
            if self.weights[index].dense_wanted
            else None
            for index in indices
        ]
        gradients = weight_gradients(weights, of_weights, self.lists.positions[layers], dense)
        found = {weight.parameter: each for weight, each in zip(weights, gradients, strict=True)}
        for index, of_bias in zip(indices, of_biases, strict=True):
            if of_bias.numel():
                found[self.chain[index].module.bias] = of_bias
        return found


def outer(dy: Tensor, x: Tensor, rows: slice) -> Tensor:
    """Rows of the gradient of all weights of a linear layer, from that of its output and from its input."""
    return dy[:, rows].t() @ x


def parameters_of(chain: Chain, weights: Sequence[KernelWeight]) -> list[Tensor | None]:
    """What autograd gives gradients to, layer by layer."""
    return [
        each
        for layer, weight in zip(chain, weights, strict=True)
        for each in (weight.parameter, layer.module.bias, *layer.norm_parameters())
    ]
