"""A region ready to run, and which of several layouts is the fastest, by how many threads."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log2

import torch
from torch import Tensor

from sparseopt.kernels.frozen.dense import DenseRegion
from sparseopt.kernels.frozen.description import ConvStep
from sparseopt.kernels.frozen.program import FrozenProgram
from sparseopt.kernels.frozen.ways import Way
from sparseopt.kernels.native.measurements import Measurements

CLOSE = 1.3  # times the shortest sum of layers that is worth a run of the whole
RUNS = 3  # in turns, of which the shortest counts
TRIED = 32  # samples at most: whole vectors of any number of lanes, twice over
CLEARLY = 0.95  # of several threads' time, that one takes at most where it runs alone


@dataclass(frozen=True)
class Tuned:
    """A program and how its layers run; `alone`: one thread is faster than several; `dense`: torch is, and by how much."""

    program: FrozenProgram
    ways: list[Way]
    alone: bool = False
    dense: DenseRegion | None = None

    def runs(self, number: int, samples: int) -> int:
        """How often a step runs for so many samples."""
        return -(-samples * self.program.patches(number).count // self.program.layout.lanes)

    def seconds(self, samples: int) -> float:
        """That so many samples take in all layers."""
        return sum(way.seconds * self.runs(number, samples) for number, way in enumerate(self.ways))

    def run(self, images: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self.dense is not None:
            return self.dense.run(images)
        alone = self.alone and len(images[0]) <= TRIED  # of more samples every thread has some of its own
        return tuple(self.program.network.run(images, alone=alone))


def fastest(candidates: Sequence[Tuned], images: tuple[Tensor, ...], known: Measurements) -> Tuned:
    """The candidate that takes the least time for such images.

    Layers alone find in the cache what in the network comes from far away: so those whose layers are not far behind run whole, in
    turns, because one after another they would tell how busy the machine was. Several threads on the same few samples hand every
    layer to one another, which may take longer than it gains: so one alone is tried too. The choice is kept, so that another
    process makes the same one.
    """
    several = torch.get_num_threads() > 1
    candidates = [
        replace(each, alone=alone)
        for each in candidates
        for alone in ((False, True) if several else (False,))
    ]
    if len(candidates) == 1:
        return candidates[0]
    samples = len(images[0])
    key = _key(candidates, samples)
    match known.get(key):
        case (number,), _ if 0 <= number < len(candidates):
            return candidates[number]
    least = min(each.seconds(samples) for each in candidates)
    times = {number: inf for number, each in enumerate(candidates) if each.seconds(samples) <= CLOSE * least}
    for number in list(times) * RUNS if len(times) > 1 else []:
        start = time.perf_counter()
        candidates[number].run(images)
        times[number] = min(times[number], time.perf_counter() - start)
    best = min(times, key=lambda number: times[number] / (CLEARLY if candidates[number].alone else 1))
    known.put(key, (best,), min(times[best], least))
    return candidates[best]


def _key(candidates: Sequence[Tuned], samples: int) -> str:
    steps = [
        (step.weight.shape, step.stride, round(4 * log2(max(1, len(step.weight.values)))))
        if isinstance(step, ConvStep)
        else (step.kernel, step.stride, 0)
        for step in candidates[0].program.convs.steps
    ]
    sizes = [(each.height, each.width) for each in candidates[0].program.extents]
    shape = repr((steps, sizes, [(each.program.layout, each.alone) for each in candidates]))
    threads = torch.get_num_threads()
    return f"{threads} threads, {samples} samples of {hashlib.sha256(shape.encode()).hexdigest()[:16]}"
