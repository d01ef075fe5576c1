"""One convolution of a region: its shape rules and its index lists."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparseopt.kernels.match.modules import zero_padding
from sparseopt.kernels.native import pattern
from sparseopt.kernels.native.conv_operators import Window
from sparseopt.kernels.native.packed import KernelWeight
from sparseopt.kernels.native.pattern import Pattern


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a convolution, and what its backward pass reads of the output's gradient."""

    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def output(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def reach(self) -> int:
        """Output position h reads input positions below h * stride + reach."""
        return self.kernel - self.padding

    def shifts(self) -> list[tuple[int, int]]:
        """For every kernel position: the parity of the inputs it reaches, and where their output is, from their own index."""
        parities = [(k - self.padding) % self.stride for k in range(self.kernel)]
        return [(p, (p + self.padding - k) // self.stride) for k, p in enumerate(parities)]

    @property
    def backward_reach(self) -> int:
        return max(shift for _, shift in self.shifts()) + 1

    @property
    def backward_border(self) -> int:
        """How far beyond the output the backward pass reads."""
        before = max(-shift for _, shift in self.shifts())
        after = max((self.size - 1 - parity) // self.stride + shift for parity, shift in self.shifts())
        return max(before, after - (self.output - 1), 0)


def axes(module: nn.Conv2d, height: int, width: int) -> tuple[Axis, Axis]:
    padding = zero_padding(module)
    assert padding is not None
    sizes = zip((height, width), module.kernel_size, module.stride, padding, strict=True)
    rows, columns = (Axis(*each) for each in sizes)
    return rows, columns


def backward_border(module: nn.Conv2d, height: int, width: int) -> int:
    return max(axis.backward_border for axis in axes(module, height, width))


@dataclass(frozen=True)
class ConvLists:
    """Index lists of one convolution for images of one width; heights matter for the `backward_border` alone."""

    shape: torch.Size  # of the weight
    window: Window
    position: Tensor
    forward: Pattern
    backward: Pattern
    reach: int
    backward_reach: int
    backward_border: int

    @property
    def dense(self) -> bool:
        """Are all weights active?"""
        return self.position.numel() == self.shape.numel()


def build_lists(weight: KernelWeight, height: int, width: int, border: int, lanes: int) -> ConvLists:
    """`border` is that of the convolution's input."""
    module = weight.module
    assert isinstance(module, nn.Conv2d)
    shape, position = weight.shape, weight.position()
    rows, columns = axes(module, height, width)
    padding = (rows.padding, columns.padding)
    around = backward_border(module, height, width)
    read = pattern.geometry(module.in_channels, width, border, lanes)
    written = pattern.geometry(module.out_channels, columns.output, around, lanes)
    return ConvLists(
        shape=shape,
        window=Window(rows.kernel, columns.kernel, *padding),
        position=position,
        forward=pattern.conv_forward(position, shape, padding, read),
        backward=pattern.conv_backward(position, shape, padding, rows.stride, written),
        reach=rows.reach,
        backward_reach=rows.backward_reach,
        backward_border=around,
    )
