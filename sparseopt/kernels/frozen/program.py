"""A frozen region for one size of images: what every layer reads and writes, as the tables its kernel takes."""

from collections.abc import Iterable
from functools import cached_property

import torch

from sparseopt.kernels.conv.run import check_sum
from sparseopt.kernels.frozen.bands import Extent, Extents, band_rows, halo
from sparseopt.kernels.frozen.description import Convs, ConvStep, End, Head
from sparseopt.kernels.native import pattern
from sparseopt.kernels.native.buffers import Shape
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.memory import integers
from sparseopt.kernels.native.network import Network

ALIGN = 16  # floats: a cache line


def extents_of(convs: Convs, sizes: Iterable[tuple[int, int]]) -> list[Extent]:
    """The size of every value, from those of the inputs."""
    found = [Extent(channels, *size, scale=1) for channels, size in zip(convs.inputs, sizes, strict=True)]
    for step in convs.steps:
        source = found[step.input]
        made = Extent(step.channels, *step.size(source.height, source.width), source.scale * step.stride)
        found.append(made)
        if step.shortcut is not None:
            added = found[step.shortcut]
            shape = Shape(1, added.height, added.channels, added.width)
            check_sum((made.height, made.width), shape, step.shortcut_stride)
    return found


def in_step(extents: Extents, steps: Iterable[ConvStep]) -> bool:
    """Whether every sum adds values whose bands begin at the same rows. Inputs of different sizes may prevent it."""
    return all(
        extents[step.shortcut].scale * step.shortcut_stride == extents[step.output].scale
        for step in steps
        if step.shortcut is not None
    )


class Program:
    """The tables of a region's layers and of the arena's slots, which hold the values.

    Slots are used again when nothing reads them any more, by values of the same shape alone, so that borders stay zero.
    """

    def __init__(self, convs: Convs, extents: Extents, bands: int, lanes: int) -> None:
        self.extents, self.bands, self.lanes = extents, bands, lanes
        steps = convs.steps
        self._rows = band_rows(extents, bands)
        self._border = [halo(_readers(steps, value), bands) for value in range(len(extents))]
        self._table: list[tuple[int, int, int, int, int, int]] = []
        self._free: dict[tuple[int, ...], list[int]] = {}
        self._slot: dict[int, int] = {}
        self._floats = 0
        for value in range(len(convs.inputs)):
            self._take(value)
        layers, patterns = self._lay_out(convs)
        heads = [end.head for end in convs.ends if end.head is not None]
        # In the order of the kernel's arguments, see `csrc/network.h`.
        self._tables = (
            bands,
            self._floats,
            integers(self._table),
            integers(layers),
            torch.cat([each.start + first for each, first in _numbered(patterns)]).int(),
            torch.cat([each.offset for each in patterns]),
            torch.cat([step.weight.values for step in steps]),
            torch.cat([step.bias for step in steps]),
            integers([self._slot[value] for value in range(len(convs.inputs))]),
            integers([self._end(end, heads) for end in convs.ends]),
            [tensor for head in heads for tensor in (head.weight.t().contiguous(), head.bias)],
        )

    @cached_property
    def network(self) -> Network:
        """The kernel's own form of the program."""
        return operators().network(*self._tables)

    def _end(self, end: End, heads: list[Head]) -> tuple[int, int, int]:
        """Of an output: its slot, whether it is a mean, and which linear layer follows, if any."""
        return self._slot[end.value], int(end.pooled), -1 if end.head is None else heads.index(end.head)

    def _lay_out(self, convs: Convs) -> tuple[list[list[int]], list[pattern.Pattern]]:
        """The table of the layers and their index lists; gives every value its slot, as long as it is needed."""
        layers: list[list[int]] = []
        patterns: list[pattern.Pattern] = []
        left = _uses(convs)
        starts = biases = 0
        for step in convs.steps:
            patterns.append(self._pattern(step))
            self._take(step.output)
            layers.append([*self._fields(step), starts, biases])
            starts, biases = starts + step.channels + 1, biases + step.channels
            for value in (step.input, step.shortcut):
                if value is not None:
                    left[value] -= 1
                    if not left[value]:
                        self._give(value)
        return layers, patterns

    def _pattern(self, step: ConvStep) -> pattern.Pattern:
        source = self.extents[step.input]
        read = pattern.geometry(source.channels, source.width, self._border[step.input], self.lanes)
        return pattern.conv_forward(step.weight.mask(), step.padding, read)

    def _fields(self, step: ConvStep) -> list[int]:
        """One layer, as the kernel reads it."""
        shortcut = -1 if step.shortcut is None else self._slot[step.shortcut]
        return [
            *(self._slot[step.input], self._slot[step.output], shortcut),
            *(step.stride, step.shortcut_stride, step.shortcut_offset, int(step.relu)),
        ]

    def _shape(self, value: int) -> tuple[int, ...]:
        extent = self.extents[value]
        return (*_image(extent), self._border[value], self._rows[value])

    def _take(self, value: int) -> None:
        shape = self._shape(value)
        free = self._free.setdefault(shape, [])
        self._slot[value] = free.pop() if free else self._new_slot(*shape)

    def _new_slot(self, channels: int, height: int, width: int, border: int, rows: int) -> int:
        self._table.append((self._floats, channels, height, width, border, rows))
        size = channels * (rows + 2 * border) * (width + 2 * border) * self.lanes
        self._floats += -(-size // ALIGN) * ALIGN
        return len(self._table) - 1

    def _give(self, value: int) -> None:
        self._free[self._shape(value)].append(self._slot[value])


def _image(extent: Extent) -> tuple[int, int, int]:
    return (extent.channels, extent.height, extent.width)


def _readers(steps: Iterable[ConvStep], value: int) -> list[ConvStep]:
    return [step for step in steps if step.input == value]


def _numbered(patterns: Iterable[pattern.Pattern]) -> Iterable[tuple[pattern.Pattern, int]]:
    """Every layer's lists, and how many weights the layers before it have."""
    first = 0
    for each in patterns:
        yield each, first
        first += len(each.offset)


def _uses(convs: Convs) -> list[int]:
    """How often each value is read; an output is read once more, after the last step."""
    uses = [0] * (len(convs.inputs) + len(convs.steps))
    for step in convs.steps:
        uses[step.input] += 1
        if step.shortcut is not None:
            uses[step.shortcut] += 1
    for end in convs.ends:
        uses[end.value] += 1
    return uses
