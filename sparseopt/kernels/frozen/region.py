"""A frozen region of convolutions, run for images of any size."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparseopt.kernels.conv.region import check_image
from sparseopt.kernels.frozen.bands import choose_bands
from sparseopt.kernels.frozen.description import Convs, ConvStep, End
from sparseopt.kernels.frozen.measurements import measurements
from sparseopt.kernels.frozen.program import Layout, Program, extents_of, in_step
from sparseopt.kernels.frozen.ways import Way, tune
from sparseopt.kernels.native.build import operators

PROGRAMS = 4  # image sizes whose tables are kept
Sizes = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Tuned:
    """A program, how its layers run, and what one group of samples takes."""

    program: Program
    ways: list[Way]

    @property
    def seconds(self) -> float:
        return sum(way.seconds for way in self.ways)


class FrozenRegion(nn.Module):
    """Everything that depends on the image size is prepared once a size, and kept for the last few. `layouts`: to be
    tried; by default those that fit the machine."""

    def __init__(self, convs: Convs, layouts: tuple[Layout, ...] = ()) -> None:
        super().__init__()
        self.content, self.layouts = convs, layouts
        self._tuned: OrderedDict[tuple[Any, ...], Tuned] = OrderedDict()
        self._lock = Lock()

    def forward(self, *images: Tensor) -> tuple[Tensor, ...]:
        for image, channels in zip(images, self.content.inputs, strict=True):
            check_image(image, channels)
        if not len(images[0]):
            return run_dense(self.content, images)
        return tuple(self.prepared(images).program.network.run(images))

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

    def _prepare(self, samples: int, sizes: Sizes) -> Tuned:
        """The layout that takes the least time for so many samples."""
        extents = extents_of(self.content, sizes)
        tuned: dict[Layout, float] = {}
        best: Tuned | None = None
        for layout in self.layouts or self._layouts(extents, samples):
            found = self._same(layout, sizes) or self._tune(Program(self.content, extents, layout))
            tuned[layout] = found.seconds * -(-samples * layout.bands // layout.lanes)
            if best is None or tuned[layout] < tuned[best.program.layout]:
                best = found
        assert best is not None
        measurements().keep()
        return best

    def _same(self, layout: Layout, sizes: Sizes) -> Tuned | None:
        """What another batch of this size uses."""
        for (_, others), found in self._tuned.items():
            if others == sizes and found.program.layout == layout:
                return found
        return None

    def _tune(self, program: Program) -> Tuned:
        return Tuned(program, tune(program, self.content.steps, measurements()))

    def _layouts(self, extents: Any, samples: int) -> list[Layout]:
        widest = operators().lanes()
        lanes = [16, 8] if widest == 16 else [widest]
        if not in_step(extents, self.content.steps):
            return [Layout(each, 1) for each in lanes]
        return [Layout(each, choose_bands(extents, samples, each)) for each in lanes]

    def __deepcopy__(self, memo: dict[int, object]) -> "FrozenRegion":
        return FrozenRegion(self.content, self.layouts)


def run_dense(convs: Convs, images: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same by torch's own convolutions."""
    values = [image.float() for image in images]
    for step in convs.steps:
        values.append(_convolve(step, values))
    return tuple(_leave(end, values[end.value]) for end in convs.ends)


def _convolve(step: ConvStep, values: list[Tensor]) -> Tensor:
    y = F.conv2d(values[step.input], step.weight.dense(), step.bias, step.stride, step.padding)
    if step.shortcut is not None:
        added = values[step.shortcut][:, :, :: step.shortcut_stride, :: step.shortcut_stride]
        y[:, step.shortcut_offset : step.shortcut_offset + added.shape[1]] += added
    return torch.relu(y) if step.relu else y


def _leave(end: End, value: Tensor) -> Tensor:
    if not end.pooled:
        return value
    mean = value.mean((2, 3))
    return mean if end.head is None else F.linear(mean, end.head.weight.dense(), end.head.bias)
