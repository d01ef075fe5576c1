"""The active weights of a layer as the lists the kernels walk (see `csrc/pattern.h`), built anew when the mask changes.

A convolution needs two: by output channel for the forward pass and by input channel for the backward pass. A weight at kernel
row r reads input row `h * stride + r - padding` for output row h. Backward, the input rows of one parity p = (r - padding) mod
stride are reached by it, from output row `(p + padding - r) / stride` counted from the row's own index: with a stride, every
parity class has its own lists, one after the other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pattern:
    """Lists of active weights, `start[i]` to `start[i + 1]` for channel i. All int32, on the CPU.

    `order[k]` is the place of entry k among the active weights in the order of memory.
    """

    start: Tensor
    offset: Tensor
    order: Tensor


@dataclass(frozen=True)
class Geometry:
    """What turns a kernel position into a memory offset: strides of the layout, in floats."""

    row: int
    channel: int
    column: int


def geometry(channels: int, width: int, border: int, lanes: int) -> Geometry:
    channel = (width + 2 * border) * lanes
    return Geometry(row=channels * channel, channel=channel, column=lanes)


def lists(group: Tensor, groups: int, offset: Tensor) -> Pattern:
    """Sort weights by group, keeping their order within a group."""
    if offset.numel() and int(offset.abs().max()) > torch.iinfo(torch.int32).max:
        raise ValueError("images of this size take offsets that the kernels have no room for: run it densely")
    order = torch.argsort(group, stable=True)
    return Pattern(starts(group, groups), offset[order].int().contiguous(), order.int())


def starts(group: Tensor, groups: int) -> Tensor:
    """Where the list of each group begins, and where the last one ends."""
    start = torch.zeros(groups + 1, dtype=torch.int32, device="cpu")
    start[1:] = torch.bincount(group, minlength=groups).cumsum(0)
    return start


def positions(mask: Tensor) -> Tensor:
    """Where the active weights are in the dense weight, in the order of memory."""
    return mask.cpu().flatten().nonzero().squeeze(1).int()


def coordinates(position: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    """The indices along each axis of a weight, of flat positions in it."""
    return torch.unravel_index(position.cpu().long(), shape)


def conv_forward(position: Tensor, shape: torch.Size, padding: tuple[int, int], at: Geometry) -> Pattern:
    out, into, row, column = coordinates(position, shape)
    offset = into * at.channel + (row - padding[0]) * at.row + (column - padding[1]) * at.column
    return lists(out, shape[0], offset)


def conv_backward(
    position: Tensor, shape: torch.Size, padding: tuple[int, int], stride: int, at: Geometry
) -> Pattern:
    out, into, row, column = coordinates(position, shape)
    parity = [(index - pad) % stride for index, pad in zip((row, column), padding, strict=True)]
    shift = [
        (p + pad - index) // stride for p, index, pad in zip(parity, (row, column), padding, strict=True)
    ]
    offset = out * at.channel + shift[0] * at.row + shift[1] * at.column
    group = (parity[0] * stride + parity[1]) * shape[1] + into
    return lists(group, stride * stride * shape[1], offset)


def linear_forward(position: Tensor, shape: torch.Size) -> Pattern:
    """The order is that of memory, and is not kept."""
    out, into = position // shape[1], position % shape[1]
    return Pattern(starts(out, shape[0]), into, position[:0])


def linear_backward(position: Tensor, shape: torch.Size) -> Pattern:
    order = (position % shape[1]).argsort(stable=True).int()
    return Pattern(starts(position % shape[1], shape[1]), position[order] // shape[1], order)
