"""Memory in the kernels' layout, kept from step to step.

A training step needs the same shapes again and again. Fresh memory would cost page faults and a new border of zeros each time;
a buffer that comes back keeps its border, because kernels write inside it only.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from sparseopt.kernels.native.memory import floats, zeros


@dataclass(frozen=True)
class Shape:
    """Size of an activation in the kernels' layout (see `csrc/layout.h`)."""

    blocks: int
    height: int
    channels: int
    width: int
    border: int = 0

    def sizes(self, lanes: int) -> tuple[int, int, int, int, int]:
        rows, columns = self.height + 2 * self.border, self.width + 2 * self.border
        return (self.blocks, rows, self.channels, columns, lanes)


class Buffers:
    """`take` a buffer of a shape, `give` it back: the one given last is taken first, while it is in the cache."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._free: defaultdict[Shape, list[Tensor]] = defaultdict(list)

    def take(self, shape: Shape) -> Tensor:
        free = self._free[shape]
        if free:
            return free.pop()
        with torch.inference_mode(False):  # they may come back for training
            return (zeros if shape.border else floats)(*shape.sizes(self.lanes))

    def give(self, shape: Shape, buffer: Tensor) -> None:
        self._free[shape].append(buffer)

    def __deepcopy__(self, memo: dict[int, object]) -> "Buffers":
        return Buffers(self.lanes)
