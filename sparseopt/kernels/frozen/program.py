"""A frozen region for one size of images and one layout: what every layer reads and writes, as the tables its kernel takes."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from sparseopt.kernels.frozen.bands import Extent, Extents, band_rows, halo
from sparseopt.kernels.frozen.description import Convs, ConvStep, End, SparseWeight
from sparseopt.kernels.native.arguments import FLOAT, address
from sparseopt.kernels.native.buffers import Shape
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.images import check_sum
from sparseopt.kernels.native.interface import FrozenConv, FrozenOutput, Slot, Weights
from sparseopt.kernels.native.network import weights

ALIGN = 16  # floats: a cache line


@dataclass(frozen=True)
class Layout:
    """Vectors of `lanes` floats, `bands` of them a sample (see `csrc/bands.h`)."""

    lanes: int
    bands: int


def extents_of(convs: Convs, sizes: Iterable[tuple[int, int]]) -> list[Extent]:
    """The size of every value, from those of the inputs."""
    found = [Extent(channels, *size, scale=1) for channels, size in zip(convs.inputs, sizes, strict=True)]
    for step in convs.steps:
        source = found[step.input]
        made = Extent(step.channels, *step.size(source.height, source.width), source.scale * step.stride)
        if min(made.height, made.width) < 1:
            raise RuntimeError(
                f"images of {source.height} x {source.width} are smaller than the kernel of {step.name!r}, "
                f"{step.weight.shape[2]} x {step.weight.shape[3]} with a padding of {step.padding}"
            )
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


class FrozenProgram:
    """The library's form of a region, `network`, and the sizes that its layers run with.

    Values live in slots of an arena. Slots are used again when nothing reads them any more, by values of the same shape alone, so
    that borders stay zero.
    """

    def __init__(self, convs: Convs, extents: Extents, layout: Layout) -> None:
        self.extents, self.layout = extents, layout
        self.rows = band_rows(extents, layout.bands)
        self._border = [halo(_readers(convs.steps, value), layout.bands) for value in range(len(extents))]
        self._slots: list[Slot] = []
        self._free: dict[tuple[int, ...], list[int]] = {}
        self._slot: dict[int, int] = {}
        self._floats = 0
        self._kept: list[Tensor] = []
        for value in range(len(convs.inputs)):
            self._take(value)
        layers = self._lay_out(convs)
        inputs = [self._slot[value] for value in range(len(convs.inputs))]
        ends = [self._end(end) for end in convs.ends]
        self.network = operators().network(
            *(layout.lanes, layout.bands, self._floats, self._slots, layers, inputs, ends, self._kept)
        )

    def _lay_out(self, convs: Convs) -> list[FrozenConv]:
        """The layers; gives every value its slot, as long as it is needed."""
        layers: list[FrozenConv] = []
        left = _uses(convs)
        for step in convs.steps:
            self._take(step.output)
            layers.append(self._layer(step))
            for value in (step.input, step.shortcut):
                if value is not None:
                    left[value] -= 1
                    if not left[value]:
                        self._give(value)
        return layers

    def _layer(self, step: ConvStep) -> FrozenConv:
        shortcut = -1 if step.shortcut is None else self._slot[step.shortcut]
        return FrozenConv(
            *(self._weights(step.weight), self._bias(step.bias, step.channels)),
            *(self._slot[step.input], self._slot[step.output], shortcut),
            *(step.stride, *step.padding, step.shortcut_stride, step.shortcut_offset, int(step.relu)),
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
        return (extent.channels, extent.height, extent.width, self._border[value], self.rows[value])

    def _take(self, value: int) -> None:
        shape = self._shape(value)
        free = self._free.setdefault(shape, [])
        self._slot[value] = free.pop() if free else self._new_slot(*shape)

    def _new_slot(self, channels: int, height: int, width: int, border: int, rows: int) -> int:
        self._slots.append(Slot(self._floats, channels, height, width, border, rows))
        size = channels * (rows + 2 * border) * (width + 2 * border) * self.layout.lanes
        self._floats += -(-size // ALIGN) * ALIGN
        return len(self._slots) - 1

    def _give(self, value: int) -> None:
        self._free[self._shape(value)].append(self._slot[value])


def _readers(steps: Iterable[ConvStep], value: int) -> list[ConvStep]:
    return [step for step in steps if step.input == value]


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
