"""A frozen region for one size of images: what every layer reads and writes, as the tables its kernel takes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sparseopt.kernels.conv.convolution import axes
from sparseopt.kernels.conv.run import check_sum
from sparseopt.kernels.frozen.bands import Extent, Extents, Value, band_rows, halo
from sparseopt.kernels.match.graph import Activation, Conv, Region
from sparseopt.kernels.native import pattern
from sparseopt.kernels.native.buffers import Shape
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.memory import integers, zeros
from sparseopt.kernels.native.network import Network

ALIGN = 16  # floats: a cache line


@dataclass(frozen=True)
class Step:
    """One convolution with what is folded into it; `makes` is an activation, or the projection a sum adds."""

    conv: Conv
    mask: Tensor
    weight: Tensor
    bias: Tensor
    makes: Value
    shortcut: Value | None
    shortcut_stride: int
    shortcut_offset: int
    relu: bool


def extents_of(
    inputs: Iterable[Activation], sizes: Iterable[tuple[int, int]], steps: Iterable[Step]
) -> dict[Value, Extent]:
    """The size of every value, from those of the inputs."""
    found: dict[Value, Extent] = {
        value: Extent(value.channels, *size, scale=1) for value, size in zip(inputs, sizes, strict=True)
    }
    for step in steps:
        source = found[step.conv.input]
        rows, columns = axes(step.conv.module, source.height, source.width)
        made = Extent(step.conv.channels, rows.output, columns.output, source.scale * rows.stride)
        found[step.makes] = made
        if step.shortcut is not None:
            added = found[step.shortcut]
            shape = Shape(1, added.height, added.channels, added.width)
            check_sum((made.height, made.width), shape, step.shortcut_stride)
    return found


def in_step(extents: Extents, steps: Iterable[Step]) -> bool:
    """Whether every sum adds values whose bands begin at the same rows. Inputs of different sizes may prevent it."""
    return all(
        extents[step.shortcut].scale * step.shortcut_stride == extents[step.makes].scale
        for step in steps
        if step.shortcut is not None
    )


Heads = Mapping[int, nn.Linear]


class Program:
    """The tables of a region's layers and of the arena's slots, which hold the values. `heads` are the linear
    layers that read outputs, by the number of the output.

    Slots are used again when nothing reads them any more, by values of the same shape alone, so that borders stay zero.
    """

    def __init__(
        self,
        region: Region,
        steps: Sequence[Step],
        heads: Heads,
        extents: Extents,
        bands: int,
        lanes: int,
    ) -> None:
        self.extents, self.bands, self.lanes = extents, bands, lanes
        self._rows = band_rows(extents, bands)
        self._border = {value: halo(_readers(steps, value), bands) for value in extents}
        self._table: list[tuple[int, int, int, int, int, int]] = []
        self._free: dict[tuple[int, ...], list[int]] = {}
        self._slot: dict[Value, int] = {}
        self._floats = 0
        for value in region.inputs:
            self._take(value)
        layers, patterns = self._lay_out(region, steps)
        # In the order of the kernel's arguments, see `csrc/network.h`.
        self._tables = (
            bands,
            self._floats,
            integers(self._table),
            integers(layers),
            torch.cat([each.start + first for each, first in _numbered(patterns)]).int(),
            torch.cat([each.offset for each in patterns]),
            torch.cat([step.weight[step.mask] for step in steps]),
            torch.cat([step.bias for step in steps]),
            integers([self._slot[value] for value in region.inputs]),
            integers(self._ends(region, heads)),
            [tensor for head in heads.values() for tensor in _transposed(head)],
        )

    @cached_property
    def network(self) -> Network:
        """The kernel's own form of the program."""
        return operators().network(*self._tables)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "network"}

    def _ends(self, region: Region, heads: Heads) -> list[tuple[int, int, int]]:
        """Of every output: its slot, whether it is a mean, and which linear layer follows, if any."""
        order = list(heads)
        return [
            (
                self._slot[each.activation],
                int(each.pooled),
                order.index(number) if number in heads else -1,
            )
            for number, each in enumerate(region.outputs)
        ]

    def _lay_out(
        self, region: Region, steps: Sequence[Step]
    ) -> tuple[list[list[int]], list[pattern.Pattern]]:
        """The table of the layers and their index lists; gives every value its slot, as long as it is needed."""
        layers: list[list[int]] = []
        patterns: list[pattern.Pattern] = []
        left = _uses(region, steps)
        starts = biases = 0
        for step in steps:
            patterns.append(self._pattern(step))
            self._take(step.makes)
            layers.append([*self._fields(step), starts, biases])
            starts, biases = starts + step.conv.channels + 1, biases + step.conv.channels
            for value in (step.conv.input, step.shortcut):
                if value is not None:
                    left[value] -= 1
                    if not left[value]:
                        self._give(value)
        return layers, patterns

    def _pattern(self, step: Step) -> pattern.Pattern:
        source = self.extents[step.conv.input]
        rows, columns = axes(step.conv.module, source.height, source.width)
        read = pattern.geometry(source.channels, source.width, self._border[step.conv.input], self.lanes)
        return pattern.conv_forward(step.mask, (rows.padding, columns.padding), read)

    def _fields(self, step: Step) -> list[int]:
        """One layer, as the kernel reads it."""
        shortcut = -1 if step.shortcut is None else self._slot[step.shortcut]
        stride = step.conv.module.stride[0]
        return [
            *(self._slot[step.conv.input], self._slot[step.makes], shortcut),
            *(stride, step.shortcut_stride, step.shortcut_offset, int(step.relu)),
        ]

    def _shape(self, value: Value) -> tuple[int, ...]:
        extent = self.extents[value]
        return (*_image(extent), self._border[value], self._rows[value])

    def _take(self, value: Value) -> None:
        shape = self._shape(value)
        free = self._free.setdefault(shape, [])
        self._slot[value] = free.pop() if free else self._new_slot(*shape)

    def _new_slot(self, channels: int, height: int, width: int, border: int, rows: int) -> int:
        self._table.append((self._floats, channels, height, width, border, rows))
        size = channels * (rows + 2 * border) * (width + 2 * border) * self.lanes
        self._floats += -(-size // ALIGN) * ALIGN
        return len(self._table) - 1

    def _give(self, value: Value) -> None:
        self._free[self._shape(value)].append(self._slot[value])


def _image(extent: Extent) -> tuple[int, int, int]:
    return (extent.channels, extent.height, extent.width)


def _transposed(head: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight [channel, feature] and bias."""
    bias = zeros(head.out_features) if head.bias is None else head.bias.detach()
    return head.weight.detach().t().contiguous(), bias


def _readers(steps: Iterable[Step], value: Value) -> list[Conv]:
    return [step.conv for step in steps if step.conv.input is value]


def _numbered(patterns: Iterable[pattern.Pattern]) -> Iterable[tuple[pattern.Pattern, int]]:
    """Every layer's lists, and how many weights the layers before it have."""
    first = 0
    for each in patterns:
        yield each, first
        first += len(each.offset)


def _uses(region: Region, steps: Iterable[Step]) -> dict[Value, int]:
    """How often each value is read; an output is read once more, after the last step."""
    uses: dict[Value, int] = dict.fromkeys(region.inputs, 0)
    uses |= {step.makes: 0 for step in steps}
    for step in steps:
        uses[step.conv.input] += 1
        if step.shortcut is not None:
            uses[step.shortcut] += 1
    for output in region.outputs:
        uses[output.activation] += 1
    return uses
