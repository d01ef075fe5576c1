"""A frozen region for one size of images and one layout: what every layer reads and writes, as the tables its kernel takes."""

from collections.abc import Iterable

from torch import Tensor

from sparseopt.kernels.frozen.bands import Extent, Extents, halo
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
from sparseopt.kernels.frozen.layouts import Layout, Segment, handed_on, segments
from sparseopt.kernels.native.arguments import FLOAT, address
from sparseopt.kernels.native.buffers import Shape
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.images import check_sum
from sparseopt.kernels.native.interface import FrozenConv, FrozenOutput, Slot, Weights
from sparseopt.kernels.native.interface import Segment as NativeSegment
from sparseopt.kernels.native.network import weights

ALIGN = 16  # floats: a cache line


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
            shape = Shape(1, added.height, added.channels, added.width)
            check_sum((made.height, made.width), shape, step.shortcut_stride)
    return found


class FrozenProgram:
    """The library's form of a region, `network`, and `made_rows`, the rows a band that each of its steps makes.

    Values live in slots of an arena. Slots are used again when nothing reads them any more, by values of the same shape alone, so
    that borders stay zero. A sum takes the place of what it adds.
    """

    def __init__(self, convs: Convs, extents: Extents, layout: Layout) -> None:
        self.extents, self.layout, self._convs = extents, layout, convs
        self.segments = segments(convs, layout)
        self.made_rows: list[int] = []
        self._rows = [0] * len(extents)
        self._border = [0] * len(extents)
        self._bands = layout.bands
        self._slots: list[Slot] = []
        self._free: dict[tuple[int, ...], list[int]] = {}
        self._slot: dict[int, int] = {}
        self._floats = 0
        self._kept: list[Tensor] = []
        self._left = convs.uses()
        layers: list[FrozenConv] = []
        tables = [self._lay_out(segment, layers) for segment in self.segments]
        inputs = [self._inputs[value] for value in range(len(convs.inputs))]
        ends = [self._end(end) for end in convs.ends]
        self.network = operators().network(
            *(layout.lanes, self._floats, tables, self._slots, layers, inputs, ends, self._kept)
        )

    def bands(self, number: int) -> int:
        """Of a step."""
        return next(each.bands for each in self.segments if number < each.last)

    def joins(self) -> float:
        """Seconds to put samples together for fewer bands, a sample."""
        steps = len(self._convs.steps)
        return sum(
            self.network.time(steps + number, 3) * before.bands / self.layout.lanes
            for number, before in enumerate(self.segments[:-1], 1)
        )

    def _lay_out(self, segment: Segment, layers: list[FrozenConv]) -> NativeSegment:
        """Adds its layers; gives every value its slot, as long as it is needed."""
        source, target = self._hand_on(segment) if segment.first else self._take_inputs(segment)
        for step in self._convs.steps[segment.first : segment.last]:
            if not self._in_place(step):
                self._take(step.output)
            layers.append(self._layer(step))
            self.made_rows.append(self._rows[step.output])
            for value in reads(step):
                self._left[value] -= 1
                if not self._left[value] and self._slot[value] != self._slot[step.output]:
                    self._free[self._shape(value)].append(self._slot[value])
        return NativeSegment(segment.last, segment.bands, source, target)

    def _take_inputs(self, segment: Segment) -> tuple[int, int]:
        self._begin(segment)
        for value in range(len(self._convs.inputs)):
            self._take(value)
        self._inputs = dict(self._slot)
        return -1, -1

    def _hand_on(self, segment: Segment) -> tuple[int, int]:
        """The slots of the one value that is needed further, before and after its bands become fewer."""
        (value,) = handed_on(self._convs, segment.first)
        source = self._slot[value]
        self._begin(segment)
        self._take(value)
        return source, self._slot[value]

    def _begin(self, segment: Segment) -> None:
        """The shapes of the values of a segment."""
        self._bands = segment.bands
        steps = self._convs.steps[segment.first : segment.last]
        for value, rows in segment.rows(self.extents).items():
            self._rows[value] = rows
            self._border[value] = halo((step for step in steps if step.input == value), segment.bands)

    def _in_place(self, step: Step) -> bool:
        """Whether a sum can be where the value is that it adds: read for the last time, by whoever writes there."""
        if isinstance(step, PoolStep) or step.shortcut is None or step.shortcut == step.input:
            return False
        alike = self._shape(step.shortcut) == self._shape(step.output) and step.shortcut_stride == 1
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

    def _shape(self, value: int) -> tuple[int, ...]:
        extent = self.extents[value]
        sizes = (extent.channels, extent.height, extent.width)
        return (*sizes, self._border[value], self._rows[value], self._bands)

    def _take(self, value: int) -> None:
        shape = self._shape(value)
        free = self._free.setdefault(shape, [])
        self._slot[value] = free.pop() if free else self._new_slot(*shape)

    def _new_slot(self, channels: int, height: int, width: int, border: int, rows: int, bands: int) -> int:
        self._slots.append(Slot(self._floats, channels, height, width, border, rows, bands))
        size = channels * (rows + 2 * border) * (width + 2 * border) * self.layout.lanes
        self._floats += -(-size // ALIGN) * ALIGN
        return len(self._slots) - 1
