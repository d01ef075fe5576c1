"""Data on its way through a region: a convolution makes the rows of the activation it reads, unless an earlier one kept them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sparseopt.kernels.conv.convolution import ConvLists, axes
from sparseopt.kernels.conv.plan import RegionPlan
from sparseopt.kernels.conv.tiles import fastest_tile, tile_key
from sparseopt.kernels.match.graph import Activation, Conv
from sparseopt.kernels.native.buffers import Buffers, Shape
from sparseopt.kernels.native.memory import floats
from sparseopt.kernels.native.norm import Norm
from sparseopt.kernels.native.packed import KernelWeight

ListsOf = Callable[[Conv, int, int, int], ConvLists]


class ForwardPass:
    """Buffers and numbers of one pass: `enter`, `compute` and `leave`."""

    def __init__(
        self,
        plan: RegionPlan,
        weights: Mapping[Conv, KernelWeight],
        lists: ListsOf,
        buffers: Buffers,
        ops: Any,
        *,
        half: bool = False,
    ) -> None:
        self.plan, self.weights, self.lists, self.buffers, self.ops = plan, weights, lists, buffers, ops
        self.samples = 0
        self.half = half  # activations are kept in half precision
        self.shapes: dict[Activation, Shape] = {}
        self.x: dict[Activation, Tensor] = {}
        self.z: dict[Conv, Tensor] = {}
        self.norms: dict[Conv, Norm] = {}
        self.used: dict[Conv, ConvLists] = {}
        self.values: dict[Conv, Tensor] = {}

    def enter(self, images: Sequence[Tensor]) -> None:
        self.samples = images[0].shape[0]
        for activation, image in zip(self.plan.region.inputs, images, strict=True):
            if activation not in self.x:
                self.x[activation] = self.buffers.take(
                    self._shape(activation, image.shape[2], image.shape[3])
                )
            self.ops.pack(
                image.detach().contiguous(), self.x[activation], self.shapes[activation].border, repeat=True
            )

    def compute(self) -> None:
        for conv in self.plan.region.convs:
            self._convolve(conv)
        for output in self.plan.region.outputs:
            self._complete(output.activation)

    def leave(self) -> list[Tensor]:
        return [self._leave(output.activation, output.pooled) for output in self.plan.region.outputs]

    def _shape(self, activation: Activation, height: int, width: int) -> Shape:
        blocks = -(-self.samples // self.buffers.lanes)
        shape = Shape(blocks, height, activation.channels, width, self.plan.border[activation])
        self.shapes[activation] = shape
        return shape

    def _image_shape(self, activation: Activation) -> Shape:
        if activation not in self.shapes:
            assert activation.main is not None
            z = self.z[activation.main]
            self._shape(activation, z.shape[1], z.shape[3])
        return self.shapes[activation]

    def kept_shape(self, activation: Activation) -> Shape:
        """As which an activation is kept. The inputs of the region are read where they are, in single precision."""
        shape = self.shapes[activation]
        if not self.half or activation.main is None:
            return shape
        return Shape(*with_border(shape, 0), half=True)

    def _source(self, activation: Activation) -> tuple[Any, ...]:
        """The parts an activation is made of, as the operators take them."""
        assert activation.main is not None
        z, affine = self.z[activation.main], self.norms[activation.main].affine
        shortcut = activation.shortcut
        if shortcut is None:
            return (z, affine, None, 0, None, 1, 0, activation.relu)
        if isinstance(shortcut.source, Conv):
            added, norm = self.z[shortcut.source], self.norms[shortcut.source].affine
            return (z, affine, added, 0, norm, 1, 0, activation.relu)
        added = self._complete(shortcut.source)
        return (
            z,
            affine,
            added,
            self.kept_shape(shortcut.source).border,
            None,
            shortcut.stride,
            shortcut.offset,
            activation.relu,
        )

    def _complete(self, activation: Activation) -> Tensor:
        """All rows of an activation, made now unless a convolution has made them."""
        if activation not in self.x:
            self._image_shape(activation)
            shape = self.kept_shape(activation)
            self.x[activation] = self.buffers.take(shape)
            self.ops.make_activation(*self._source(activation), self.x[activation], shape.border)
        return self.x[activation]

    def _convolve(self, conv: Conv) -> None:
        activation = conv.input
        shape = self._image_shape(activation)
        keep, ready, copy = activation in self.plan.kept, activation in self.x, None
        source = (None, None, None, 0, None, 1, 0, False) if ready else self._source(activation)
        if keep and not ready:
            self.x[activation] = self.buffers.take(self.kept_shape(activation))
        if self.kept_shape(activation).half:  # rows are made in single precision, for a block at a time
            if ready:
                source = (self.x[activation], *source[1:])
            elif keep:
                copy = self.x[activation]
            keep = False
        x = self.x[activation] if keep else floats(*Shape(0, *_sizes(shape)).sizes(self.buffers.lanes))
        rows, columns = axes(conv.module, shape.height, shape.width)
        out = Shape(shape.blocks, rows.output, conv.channels, columns.output, 0, self.half)
        self.z[conv] = self.buffers.take(out)
        norm = self.norms[conv] = Norm(conv, self.ops, self.samples * rows.output * columns.output)
        lists = self.used[conv] = self.lists(conv, shape.height, shape.width, shape.border)
        check_weight(self.weights[conv], lists)
        self.values[conv] = self.weights[conv].values(lists.position)
        use = lists.forward
        arguments = (
            *(x, shape.border, keep, *source, self.values[conv], use.start, use.offset),
            *(rows.stride, lists.reach),
        )
        named = {
            "samples": self.samples,
            "out": self.z[conv],
            "shift": norm.shift,
            "sums": norm.sums,
            "copy": copy,
            "dense": lists.dense,
        }
        tile = self.tile(conv, self.ops.conv_forward, lambda: arguments, named, backward=False)
        self.ops.conv_forward(*arguments, **named, tile=tile)
        norm.prepare()

    def tile(
        self,
        conv: Conv,
        operator: Callable[..., None],
        arguments: Callable[[], Sequence[Any]],
        named: Mapping[str, Any],
        *,
        backward: bool,
    ) -> int:
        if self.used[conv].dense:
            return 0
        shape, what = self.shapes[conv.input], "backward" if backward else "forward"
        weight, active = self.weights[conv].shape, self.values[conv].numel()
        image = (shape.height, shape.width)
        key = tile_key(what, weight, active, image, conv.module.stride[0], self.half)
        tiles = self.ops.training_tiles(backward=backward)
        return fastest_tile(operator, tiles, self.buffers.lanes, key, arguments, named)

    def _leave(self, activation: Activation, pooled: bool) -> Tensor:
        x, shape = self.x[activation], self.kept_shape(activation)
        if pooled:
            out = floats(self.samples, shape.channels)
            self.ops.pool_forward(x, shape.border, out)
        else:
            out = floats(self.samples, shape.channels, shape.height, shape.width)
            self.ops.unpack(x, shape.border, out)
        return out


def shape_of(z: Tensor) -> Shape:
    return Shape(z.shape[0], z.shape[1], z.shape[2], z.shape[3], 0, z.dtype == torch.bfloat16)


def check_weight(weight: KernelWeight, lists: ConvLists) -> None:
    """The kernels trust the shapes."""
    bias = weight.module.bias
    if weight.shape != lists.shape or (bias is not None and bias.shape != lists.shape[:1]):
        raise RuntimeError(
            f"{weight.name!r} has another shape, {tuple(weight.shape)}, than when the model was accelerated, "
            f"{tuple(lists.shape)}"
        )


def _sizes(shape: Shape) -> tuple[int, int, int, int]:
    return (shape.height, shape.channels, shape.width, shape.border)


def with_border(shape: Shape, border: int) -> tuple[int, int, int, int, int]:
    return (shape.blocks, shape.height, shape.channels, shape.width, border)
