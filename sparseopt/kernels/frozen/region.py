"""A frozen region of convolutions, run for images of any size."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparseopt.kernels.conv.region import check_image
from sparseopt.kernels.frozen.bands import choose_bands
from sparseopt.kernels.frozen.description import Convs, ConvStep, End
from sparseopt.kernels.frozen.program import Program, extents_of, in_step
from sparseopt.kernels.native.build import operators

PROGRAMS = 4  # image sizes whose tables and memory are kept


class FrozenRegion(nn.Module):
    """Everything that depends on the image size is prepared once a size, and kept for the last few."""

    def __init__(self, convs: Convs) -> None:
        super().__init__()
        self.content = convs
        self._lanes = operators().lanes()
        self._programs: OrderedDict[tuple[Any, ...], Program] = OrderedDict()

    def forward(self, *images: Tensor) -> tuple[Tensor, ...]:
        for image, channels in zip(images, self.content.inputs, strict=True):
            check_image(image, channels)
        if not len(images[0]):
            return run_dense(self.content, images)
        sizes = tuple((image.shape[2], image.shape[3]) for image in images)
        return tuple(self._program(images[0].shape[0], sizes).network.run(images))

    def _program(self, samples: int, sizes: tuple[tuple[int, int], ...]) -> Program:
        """What another batch of this size uses, if it is cut into as many bands, or a new one."""
        extents = extents_of(self.content, sizes)
        bands = choose_bands(extents, samples, self._lanes) if in_step(extents, self.content.steps) else 1
        key = (bands, *sizes)
        found = self._programs.pop(key, None) or Program(self.content, extents, bands, self._lanes)
        self._programs[key] = found
        while len(self._programs) > PROGRAMS:
            self._programs.popitem(last=False)
        return found

    def __deepcopy__(self, memo: dict[int, object]) -> "FrozenRegion":
        return FrozenRegion(self.content)


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
    return mean if end.head is None else F.linear(mean, end.head.weight, end.head.bias)
