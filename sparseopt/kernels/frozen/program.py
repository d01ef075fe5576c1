"""A frozen region for one size of images and one layout: what every layer reads and writes, as the tables its kernel takes."""

from collections.abc import Iterable
from itertools import pairwise

from torch import Tensor

from sparseopt.kernels.frozen.arena import Arena, Form
from sparseopt.kernels.frozen.bands import Extent, Extents, Patches
from sparseopt.kernels.frozen.description import (
    Convs,
    ConvStep,
    End,
    PoolStep,
    SparseWeight,
    Step,
    reads,
    size_after,
)
from sparseopt.kernels.frozen.groups import group_of
from sparseopt.kernels.frozen.layouts import Layout, LayoutSegment, handed_on, segments
from sparseopt.kernels.native.arguments import FLOAT, address
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.interface import FrozenConv, FrozenOutput, Segment, Weights
from sparseopt.kernels.native.network import weights

LARGEST = (
    2**40
)  # numbers of an arena: above that is no memory, and sizes are to be far from where integers end


def extents_of(convs: Convs, sizes: Iterable[tuple[int, int]]) -> list[Extent]:
    """The size of every value, from those of the inputs."""
    found = [Extent(channels, *size, scale=1) for channels, size in zip(convs.inputs, sizes, strict=True)]
    for step in convs.steps:
        source = found[step.input]
        made = Extent(
            step.channels, *size_after(step, source.height, source.width), source.scale * step.stride
        )
        if min(made.height, made.width) < 1:
            name = repr(step.name) if isinstance(step, ConvStep) else "a max pooling"
            raise RuntimeError(
                f"images of {source.height} x {source.width} are smaller than the kernel of {name}, "
                f"{step.kernel[0]} x {step.kernel[1]} with a padding of {step.padding}"
            )
        found.append(made)
        if isinstance(step, ConvStep) and step.shortcut is not None:
            added = found[step.shortcut]
            stride = step.shortcut_stride
            size, other = (made.height, made.width), (-(-added.height // stride), -(-added.width // stride))
            if size != other:
                raise ValueError(
                    f"a residual sum of images of size {size} and {other}: an engine adds equal sizes only"
                )
    return found


class FrozenProgram:
    """The library's form of a region, `network`; `made`, the rows and columns a patch that each of its steps makes, and `groups`,
    the columns of a group in what it reads and in what it makes."""

    def __init__(self, convs: Convs, extents: Extents, layout: Layout) -> None:
        self.extents, self.layout, self.convs = extents, layout, convs
        self.segments = segments(convs, layout)
        self.made: list[tuple[int, int]] = []
        self.groups: list[tuple[int, int]] = []
        self._arena = Arena(layout.lanes)
        self._form: dict[int, Form] = {}
        self._slot: dict[int, int] = {}
        self._kept: list[Tensor] = []
        self._left = convs.uses()
        # What is put together for a segment from several groups of samples is there while earlier segments run.
        self._joined = dict(self._take_joined(segment) for segment in self.segments[1:])
        self._begin(self.segments[0])
        inputs = [self._take(value) for value in range(len(convs.inputs))]
        layers: list[FrozenConv] = []
        tables: list[Segment] = []
        for number, segment in enumerate(self.segments):
            if number:
                self._arena.keep(list(self._joined.values())[number - 1 :])
                self._begin(segment)
            tables.append(Segment(self._add_layers(segment, layers), segment.patches.count))
        ends = [self._end(end) for end in convs.ends]
        if self._arena.floats >= LARGEST:
            raise MemoryError(f"the region takes {self._arena.floats:,} numbers at once")
        self.network = operators().network(
            *(layout.lanes, self._arena.floats, tables, self._arena.slots, layers, inputs, ends, self._kept)
        )

    def patches(self, number: int) -> Patches:
        """Of a step."""
        return next(each.patches for each in self.segments if number < each.last)

    def recut(self, number: int) -> int:
        """To how many times fewer bands the output of a step is cut."""
        for before, following in pairwise(self.segments):
            if number == before.last - 1:
                return before.patches.bands // following.patches.bands
        return 1

    def _take_joined(self, segment: LayoutSegment) -> tuple[int, int]:
        """The value that a segment begins with, which the last step before it makes, and its slot."""
        (value,) = handed_on(self.convs, segment.first)
        self._begin(segment)
        return value, self._take(value)

    def _begin(self, segment: LayoutSegment) -> None:
        """The forms of the values of a segment."""
        steps = self.convs.steps[segment.first : segment.last]
        patches = segment.patches
        for value, size in segment.sizes(self.extents).items():
            border = patches.halo(step for step in steps if step.input == value)
            extent = self.extents[value]
            self._form[value] = Form(
                *(extent.channels, extent.height, extent.width, border, *size, patches.bands, patches.strips),
                group=self._group(value, size[1]),
            )

    def _group(self, value: int, columns: int) -> int:
        if value not in self.layout.grouped:
            return 0
        return group_of(columns, operators().tiles(self.layout.lanes), self.layout.widest_group(columns))

    def _add_layers(self, segment: LayoutSegment, layers: list[FrozenConv]) -> int:
        """Gives every value its slot, as long as it is needed. The number of layers so far."""
        for step in self.convs.steps[segment.first : segment.last]:
            if step.output in self._joined:
                self._slot[step.output] = self._joined[step.output]
            elif not self._in_place(step):
                self._take(step.output)
            layers.append(self._layer(step))
            self.made.append((self._form[step.output].rows, self._form[step.output].columns))
            self.groups.append((self._form[step.input].group, self._form[step.output].group))
            for value in reads(step):
                self._left[value] -= 1
                if not self._left[value] and self._slot[value] != self._slot[step.output]:
                    self._arena.give(self._slot[value])
        return len(layers)

    def _take(self, value: int) -> int:
        self._slot[value] = self._arena.take(self._form[value])
        return self._slot[value]

    def _in_place(self, step: Step) -> bool:
        """Whether a sum can be where the value is that it adds: read for the last time, by whoever writes there."""
        if isinstance(step, PoolStep) or step.shortcut is None or step.shortcut == step.input:
            return False
        alike = self._form[step.shortcut] == self._form[step.output] and step.shortcut_stride == 1
        if not alike or self._left[step.shortcut] > 1:
            return False
        self._slot[step.output] = self._slot[step.shortcut]
        return True

    def _layer(self, step: Step) -> FrozenConv:
        slots = self._slot[step.input], self._slot[step.output]
        if isinstance(step, PoolStep):
            window = Weights(None, None, 0, step.channels, step.channels, *step.kernel)
            return FrozenConv(window, None, *slots, -1, step.stride, *step.padding, 1, 0, 0, 1)
        shortcut = -1 if step.shortcut is None else self._slot[step.shortcut]
        return FrozenConv(
            *(self._weights(step.weight), self._bias(step.bias, step.channels), *slots, shortcut),
            *(step.stride, *step.padding, step.shortcut_stride, step.shortcut_offset, int(step.relu), 0),
        )

    def _end(self, end: End) -> FrozenOutput:
        """Of an output: its slot, whether it is a mean, and which linear layer follows, if any."""
        slot = self._slot[end.value]
        if end.head is None:
            return FrozenOutput(slot, int(end.pooled), Weights(), None)
        weight = self._weights(end.head.weight)
        return FrozenOutput(slot, 1, weight, self._bias(end.head.bias, weight.out))

    def _weights(self, weight: SparseWeight) -> Weights:
        self._kept += [weight.position, weight.values]
        return weights(weight.position, weight.values, weight.shape)

    def _bias(self, bias: Tensor, channels: int) -> int:
        self._kept.append(bias)
        return address(bias, FLOAT, channels)
