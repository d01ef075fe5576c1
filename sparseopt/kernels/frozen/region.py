"""A frozen region of convolutions, run for images of any size."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparseopt.kernels.frozen.bands import Extents
from sparseopt.kernels.frozen.description import Convs, ConvStep, End, PoolStep
from sparseopt.kernels.frozen.layouts import Layout, layouts
from sparseopt.kernels.frozen.measurements import measurements
from sparseopt.kernels.frozen.program import FrozenProgram, extents_of
from sparseopt.kernels.frozen.ways import Way, tune
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.images import check_image
from sparseopt.kernels.native.memory import zeros

FASTEST = 2 * 5e9  # multiply-adds a lane and second that no CPU exceeds
MEASURED = 8  # image sizes that are measured, in one layout
PROGRAMS = 4  # image sizes whose tables are kept
Sizes = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Tuned:
    """A program, how its layers run, and what it takes beside them, a sample; `dense`: torch is faster, and by how much."""

    program: FrozenProgram
    ways: list[Way]
    joins: float = 0.0
    dense: "DenseRegion | None" = None

    def seconds(self, samples: int) -> float:
        """That so many samples take."""
        lanes = self.program.layout.lanes
        runs = [-(-samples * self.program.bands(number) // lanes) for number in range(len(self.ways))]
        return (
            sum(way.seconds * each for way, each in zip(self.ways, runs, strict=True)) + self.joins * samples
        )

    def run(self, images: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(self.program.network.run(images)) if self.dense is None else self.dense.run(images)


class FrozenRegion(nn.Module):
    """Everything that depends on the image size is prepared once a size, and kept for the last few. `layouts`: to be
    tried, and nothing else; by default those that fit the machine, and torch's dense convolutions where they may be faster."""

    def __init__(self, convs: Convs, layouts: tuple[Layout, ...] = ()) -> None:
        super().__init__()
        self.content, self.layouts = convs, layouts
        self._tuned: OrderedDict[tuple[Any, ...], Tuned] = OrderedDict()
        self._measured: list[tuple[int, Layout, list[Way]]] = []  # pixels of all values, and what was chosen
        self._compared: dict[
            tuple[int, int, Sizes], tuple[torch.memory_format, str] | None
        ] = {}  # with dense
        self._lock = Lock()

    def forward(self, *images: Tensor) -> tuple[Tensor, ...]:
        for image, channels in zip(images, self.content.inputs, strict=True):
            check_image(image, channels)
        if not len(images[0]):
            return DenseRegion(self.content).run(images)
        return self.prepared(images).run(images)

    def prepared(self, images: tuple[Tensor, ...]) -> Tuned:
        sizes = tuple((image.shape[2], image.shape[3]) for image in images)
        samples = min(images[0].shape[0], 32)  # whole vectors of any number of lanes, twice over
        key = (samples, sizes)
        with self._lock:
            found = self._tuned.pop(key, None) or self._prepare(samples, sizes)
            self._tuned[key] = found
            while len(self._tuned) > PROGRAMS:
                self._tuned.popitem(last=False)
        return found

    def report(self) -> dict[str, str]:
        """How each layer runs for the images that came last; empty before the first ones."""
        if not self._tuned:
            return {}
        tuned = next(reversed(self._tuned.values()))
        if tuned.dense is not None:
            return dict.fromkeys(self.content.names(), tuned.dense.reason)
        lanes = tuned.program.layout.lanes
        how: dict[str, str] = {}
        for number, (step, way) in enumerate(zip(self.content.steps, tuned.ways, strict=True)):
            if isinstance(step, ConvStep) and step.name is not None:
                together = lanes // tuned.program.bands(number)
                images = f" for {together} images" if together > 1 else ""
                how[step.name] = f"{lanes} lanes, {way}, {way.seconds * 1e3:.3g} ms{images}"
        return {name: how.get(name, "behind the mean") for name in self.content.names()}

    def _prepare(self, samples: int, sizes: Sizes) -> Tuned:
        """The layout that takes the least time for so many samples."""
        extents = extents_of(self.content, sizes)
        seconds: dict[Layout, float] = {}
        best: Tuned | None = None
        for layout in self.layouts or self._layouts(extents, samples):
            found = self._same(layout, sizes) or self._tune(FrozenProgram(self.content, extents, layout))
            seconds[layout] = found.seconds(samples)
            if best is None or seconds[layout] < seconds[best.program.layout]:
                best = found
        assert best is not None
        measurements().keep()
        if self.layouts or seconds[best.program.layout] < self._least_dense(extents) * samples:
            return best
        dense = self._dense(samples, sizes, best)
        return best if dense is None else replace(best, dense=dense)

    def _dense(self, samples: int, sizes: Sizes, tuned: Tuned) -> "DenseRegion | None":
        """Torch's convolutions, if they are faster. What was found once holds, so that results are the same at every call."""
        key = (samples * sum(height * width for height, width in sizes), samples, sizes)
        if key not in self._compared:
            if len(self._compared) >= MEASURED:
                key = min(self._compared, key=lambda each: abs(log(each[0] / key[0])))
            else:
                images = tuple(
                    zeros(samples, channels, *size)
                    for channels, size in zip(self.content.inputs, sizes, strict=True)
                )
                self._compared[key] = faster_dense(self.content, images, tuned)
        found = self._compared[key]
        return None if found is None else DenseRegion(self.content, *found)

    def _least_dense(self, extents: Extents) -> float:
        """Seconds that a dense sample takes at least: where we are below, there is nothing to measure."""
        products = sum(
            step.weight.size * extents[step.output].height * extents[step.output].width
            for step in self.content.learned()
        )
        return products / (FASTEST * operators().lanes() * torch.get_num_threads())

    def _same(self, layout: Layout, sizes: Sizes) -> Tuned | None:
        """What another batch of this size uses."""
        for (_, others), found in self._tuned.items():
            if others == sizes and found.program.layout == layout and found.dense is None:
                return found
        return None

    def _tune(self, program: FrozenProgram) -> Tuned:
        """Measured for the first few sizes; after that, as the closest of these runs."""
        area = sum(extent.height * extent.width for extent in program.extents)
        alike = [each for each in self._measured if each[1] == program.layout]
        if len(alike) >= MEASURED:
            nearest, _, ways = min(alike, key=lambda each: abs(log(each[0] / area)))
            for number, way in enumerate(ways):
                program.network.choose(number, way.tile.number, way.block)
            ways = [replace(way, seconds=way.seconds * area / nearest) for way in ways]
            return Tuned(program, ways, program.joins())
        ways = tune(program, self.content.steps, measurements())
        self._measured.append((area, program.layout, ways))
        return Tuned(program, ways, program.joins())

    def _layouts(self, extents: Extents, samples: int) -> list[Layout]:
        widest = operators().lanes()
        lanes = (16, 8) if widest == 16 else (widest,)
        return [found for each in lanes for found in layouts(self.content, extents, samples, each)]

    def __deepcopy__(self, memo: dict[int, object]) -> "FrozenRegion":
        return FrozenRegion(self.content, self.layouts)


def faster_dense(
    convs: Convs, images: tuple[Tensor, ...], tuned: Tuned
) -> tuple[torch.memory_format, str] | None:
    """The memory format in which torch's own convolutions take less time than the kernels, and what that was."""
    sparse = shortest(lambda: tuned.run(images))
    formats = (torch.contiguous_format, torch.channels_last)
    times = {each: shortest(lambda each=each: DenseRegion(convs, each).run(images)) for each in formats}
    best = min(formats, key=lambda each: times[each])
    if times[best] >= sparse:
        return None
    return best, f"dense: {times[best] * 1e3:.3g} ms, {sparse * 1e3:.3g} ms on the sparse kernels"


def shortest(run: Callable[[], object]) -> float:
    """Seconds of the shortest of a few runs."""
    run()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


class DenseRegion:
    """A region by torch's own convolutions."""

    def __init__(
        self, convs: Convs, memory: torch.memory_format = torch.contiguous_format, reason: str = "dense"
    ) -> None:
        self.convs, self.memory, self.reason = convs, memory, reason
        self._weights = [
            step.weight.dense().to(memory_format=memory) if isinstance(step, ConvStep) else None
            for step in convs.steps
        ]

    def run(self, images: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        values = [image.float().contiguous(memory_format=self.memory) for image in images]
        for step, weight in zip(self.convs.steps, self._weights, strict=True):
            if isinstance(step, PoolStep):
                values.append(F.max_pool2d(values[step.input], step.kernel, step.stride, step.padding))
            else:
                assert weight is not None
                values.append(_convolve(step, weight, values))
        return tuple(_leave(end, values[end.value]) for end in self.convs.ends)


def _convolve(step: ConvStep, weight: Tensor, values: list[Tensor]) -> Tensor:
    y = F.conv2d(values[step.input], weight, step.bias, step.stride, step.padding)
    if step.shortcut is not None:
        added = values[step.shortcut][:, :, :: step.shortcut_stride, :: step.shortcut_stride]
        y[:, step.shortcut_offset : step.shortcut_offset + added.shape[1]] += added
    return torch.relu(y) if step.relu else y


def _leave(end: End, value: Tensor) -> Tensor:
    if not end.pooled:
        return value.contiguous()
    mean = value.mean((2, 3))
    return mean if end.head is None else F.linear(mean, end.head.weight.dense(), end.head.bias)
