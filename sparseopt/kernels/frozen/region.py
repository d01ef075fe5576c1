"""A frozen region of convolutions, run for images of any size."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from math import log
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from sparseopt.kernels.frozen.bands import Extents
from sparseopt.kernels.frozen.dense import DenseRegion, faster_dense
from sparseopt.kernels.frozen.description import Convs, ConvStep
from sparseopt.kernels.frozen.layouts import Layout, layouts, narrower
from sparseopt.kernels.frozen.program import FrozenProgram, extents_of
from sparseopt.kernels.frozen.tuned import TRIED, Tuned, fastest
from sparseopt.kernels.frozen.ways import Groups, Way, tune
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.measurements import measurements
from sparseopt.kernels.native.memory import zeros

FASTEST = 2 * 5e9  # multiply-adds a lane and second that no CPU exceeds
MEASURED = 8  # image sizes that are measured, in one layout
PROGRAMS = 4  # image sizes whose tables are kept
Sizes = tuple[tuple[int, int], ...]


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
        # The shapes and the number of threads that came last, and what runs them.
        self._latest: tuple[list[torch.Size], int, Tuned] | None = None

    def forward(self, *images: Tensor) -> tuple[Tensor, ...]:
        shapes = [image.shape for image in images]
        if any(image.is_neg() for image in images):  # negative only by a bit that the kernels do not see
            images = tuple(image.resolve_neg() for image in images)
        latest = self._latest
        threads = torch.get_num_threads()
        if latest is not None and latest[0] == shapes and latest[1] == threads:
            return latest[2].run(images)
        if not self._fit(images):
            return DenseRegion(self.content).run(images)  # or torch says what is wrong
        found = self.prepared(images)
        self._latest = shapes, threads, found
        return found.run(images)

    def _fit(self, images: tuple[Tensor, ...]) -> bool:
        """Are they batches of as many images, with sizes that the kernels can add up? Else torch knows what to do, or refuses."""
        first = images[0]
        alike = all(image.dim() == 4 and len(image) == len(first) for image in images) and len(first) > 0
        if not alike or any(x.shape[1] != c for x, c in zip(images, self.content.inputs, strict=True)):
            return False
        try:
            extents_of(self.content, [(image.shape[2], image.shape[3]) for image in images])
        except (RuntimeError, ValueError):
            return False
        return True

    def prepared(self, images: tuple[Tensor, ...]) -> Tuned:
        sizes = tuple((image.shape[2], image.shape[3]) for image in images)
        samples = min(images[0].shape[0], TRIED)
        key = (samples, sizes, torch.get_num_threads())
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
        threads = ", one thread" if tuned.alone else ""
        how: dict[str, str] = {}
        for number, (step, way) in enumerate(zip(self.content.steps, tuned.ways, strict=True)):
            if isinstance(step, ConvStep) and step.name is not None:
                together = lanes // tuned.program.patches(number).count
                images = f" for {together} images" if together > 1 else ""
                how[step.name] = f"{lanes} lanes, {way}{threads}, {way.seconds * 1e3:.3g} ms{images}"
        return {name: how.get(name, "behind the mean") for name in self.content.names()}

    def _prepare(self, samples: int, sizes: Sizes) -> Tuned:
        """The layout that takes the least time for so many samples: its lanes and cuts first, then how wide groups are."""
        extents = extents_of(self.content, sizes)
        images = self._blank(samples, sizes)
        layouts = self.layouts or self._layouts(extents, samples)
        best = fastest(self._candidates(layouts, sizes, extents), images, measurements())
        if not self.layouts:
            narrow = self._candidates(narrower(best.program.layout, extents), sizes, extents)
            others = [each for each in narrow if each.program.groups != best.program.groups]
            best = fastest([best, *others], images, measurements())
        measurements().keep()
        if self.layouts or best.seconds(samples) < self._least_dense(extents) * samples:
            return best
        dense = self._dense(images, best)
        return best if dense is None else replace(best, dense=dense)

    def _candidates(self, layouts: Iterable[Layout], sizes: Sizes, extents: Extents) -> list[Tuned]:
        """One a layout. Where the machine has no tiles for wide groups, or images are small, narrow ones are the same."""
        found: dict[tuple[Layout, tuple[Groups, ...]], Tuned] = {}
        for layout in layouts:
            known = self._same(layout, sizes)
            program = FrozenProgram(self.content, extents, layout) if known is None else known.program
            form = replace(layout, narrow=0), tuple(program.groups)
            if form not in found:
                found[form] = known or self._tune(program)
        return list(found.values())

    def _blank(self, samples: int, sizes: Sizes) -> tuple[Tensor, ...]:
        """Images to measure with."""
        channels = self.content.inputs
        return tuple(zeros(samples, each, *size) for each, size in zip(channels, sizes, strict=True))

    def _dense(self, images: tuple[Tensor, ...], tuned: Tuned) -> "DenseRegion | None":
        """Torch's convolutions, if they are faster. What was found once holds, so that results are the same at every call."""
        samples, sizes = len(images[0]), tuple((image.shape[2], image.shape[3]) for image in images)
        key = (samples * sum(height * width for height, width in sizes), samples, sizes)
        if key not in self._compared:
            if len(self._compared) >= MEASURED:
                key = min(self._compared, key=lambda each: abs(log(each[0] / key[0])))
            else:
                self._compared[key] = faster_dense(self.content, images, tuned.run)
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
        for (_, others, _), found in self._tuned.items():
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
                program.network.choose(number, *way.numbers)
            ways = [replace(way, seconds=way.seconds * area / nearest) for way in ways]
            return Tuned(program, ways)
        ways = tune(program, self.content.steps, measurements())
        self._measured.append((area, program.layout, ways))
        return Tuned(program, ways)

    def _layouts(self, extents: Extents, samples: int) -> list[Layout]:
        widest = operators().lanes()
        lanes = (16, 8) if widest == 16 else (widest,)
        return [found for each in lanes for found in layouts(self.content, extents, samples, each)]

    def __deepcopy__(self, memo: dict[int, object]) -> "FrozenRegion":
        return FrozenRegion(self.content, self.layouts)
