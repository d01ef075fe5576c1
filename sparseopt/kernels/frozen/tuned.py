"""A region ready to run, and which of several layouts is the fastest."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from torch import Tensor

from sparseopt.kernels.frozen.dense import DenseRegion
from sparseopt.kernels.frozen.description import Convs, ConvStep
from sparseopt.kernels.frozen.program import FrozenProgram
from sparseopt.kernels.frozen.ways import Way
from sparseopt.kernels.native.measurements import Measurements

RUNS = 3  # of every layer, in turns, of which the shortest counts


@dataclass(frozen=True)
class Tuned:
    """A program and how its layers run; `dense`: torch is faster, and by how much."""

    program: FrozenProgram
    ways: list[Way]
    dense: DenseRegion | None = None

    def runs(self, number: int, samples: int) -> int:
        """How often a step runs for so many samples."""
        return -(-samples * self.program.patches(number).count // self.program.layout.lanes)

    def seconds(self, samples: int) -> float:
        """That so many samples take in all layers."""
        return sum(way.seconds * self.runs(number, samples) for number, way in enumerate(self.ways))

    def run(self, images: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(self.program.network.run(images)) if self.dense is None else self.dense.run(images)


def fastest(convs: Convs, candidates: Sequence[Tuned], samples: int, known: Measurements) -> Tuned:
    """The candidate that takes the least time for so many samples.

    Layer by layer they take turns: what was measured one after another would tell how busy the machine was. The choice is
    kept, so that another process makes the same one.
    """
    if len(candidates) == 1:
        return candidates[0]
    key = _key(convs, candidates, samples)
    match known.get(key):
        case int(number), _, _ if 0 <= number < len(candidates):
            return candidates[number]
    totals = [each.program.joins() * samples for each in candidates]
    for number in range(len(convs.steps)):
        for index, each in enumerate(candidates):
            totals[index] += each.program.network.time(number, RUNS) * each.runs(number, samples)
    best = min(range(len(candidates)), key=totals.__getitem__)
    known.put(key, best, 0, totals[best])
    return candidates[best]


def _key(convs: Convs, candidates: Sequence[Tuned], samples: int) -> str:
    steps = [
        (step.weight.shape, step.stride, round(4 * log2(max(1, len(step.weight.values)))))
        if isinstance(step, ConvStep)
        else (step.kernel, step.stride, 0)
        for step in convs.steps
    ]
    sizes = [(each.height, each.width) for each in candidates[0].program.extents]
    shape = repr((steps, sizes, [each.program.layout for each in candidates]))
    return f"{samples} samples of {hashlib.sha256(shape.encode()).hexdigest()[:16]}"
