"""Memory in the kernels' layout, kept from step to step.

A training step needs the same shapes again and again. Fresh memory would cost page faults and a new border of zeros each time;
a buffer that comes back keeps its border, because kernels write inside it only. For a shape that is not there, the smallest
buffer that is large enough takes it; where none is, one that is too small makes way. So there are never more buffers than were
in use at once, and inputs of many sizes need the memory of the largest.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from sparseopt.kernels.native.memory import floats, mapped


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
        self._free: list[tuple[Shape, Tensor]] = []

    def take(self, shape: Shape) -> Tensor:
        for at in reversed(range(len(self._free))):
            if self._free[at][0] == shape:
                return self._free.pop(at)[1]
        with torch.inference_mode(False):  # they may come back for training
            found = self._from_another(shape)
            return mapped(*shape.sizes(self.lanes)) if found is None else found

    def _from_another(self, shape: Shape) -> Tensor | None:
        """Memory of another shape, if some is free and large enough; the largest is let go if not."""
        if not self._free:
            return None
        sizes = shape.sizes(self.lanes)
        capacity = [_capacity(buffer) for _, buffer in self._free]
        fitting = [at for at, size in enumerate(capacity) if size >= prod(sizes)]
        if not fitting:
            self._free.pop(capacity.index(max(capacity)))
            return None
        _, buffer = self._free.pop(min(fitting, key=capacity.__getitem__))
        taken = floats(0).set_(buffer.untyped_storage(), 0, sizes)  # pyright: ignore[reportCallIssue]
        return taken.zero_() if shape.border else taken

    def give(self, shape: Shape, buffer: Tensor) -> None:
        self._free.append((shape, buffer))

    def __deepcopy__(self, memo: dict[int, object]) -> "Buffers":
        return Buffers(self.lanes)


def _capacity(buffer: Tensor) -> int:
    """Floats that fit into the buffer's memory, however much of it is in use."""
    return buffer.untyped_storage().nbytes() // buffer.element_size()
