"""Memory in the kernels' layout, kept from step to step.

A training step needs the same shapes again and again. Fresh memory would cost page faults and a new border of zeros each time;
a buffer that comes back keeps its border, because kernels write inside it only. For a shape that is not there a buffer is made,
as long as all of them take little more memory than was in use at once; beyond that the smallest that is large enough is taken
of those whose shape this step has not used, and where none is, those that are too small make way. So steps that repeat themselves
soon find every shape they need, and inputs of many sizes need the memory of the largest.
"""

import threading
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from sparseopt.kernels.native.memory import CPU, mapped

SLACK = 1.1  # memory that is kept, compared with what was in use at once


@dataclass(frozen=True)
class Shape:
    """Size of an activation in the kernels' layout (see `csrc/layout.h`)."""

    blocks: int
    height: int
    channels: int
    width: int
    border: int = 0
    half: bool = False  # values are bfloat16

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.half else torch.float32

    def sizes(self, lanes: int) -> tuple[int, int, int, int, int]:
        rows, columns = self.height + 2 * self.border, self.width + 2 * self.border
        return (self.blocks, rows, self.channels, columns, lanes)


class Buffers:
    """`take` a buffer of a shape, `give` it back: the one given last is taken first, while it is in the cache."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.changes = 0  # how often a buffer of another shape was taken, or none that was there
        self._free: list[tuple[Shape, Tensor]] = []
        self._in_use = self._most = 0  # bytes: now, and at once so far
        self._used: set[Shape] = set()  # in this step: since nothing was in use
        self._lock = threading.RLock()  # a run that is collected meanwhile gives its buffers back

    def take(self, shape: Shape) -> Tensor:
        with self._lock:
            if not self._in_use:
                self._used.clear()
            self._used.add(shape)
            buffer = self._find(shape)
            self._in_use += _capacity(buffer)
            self._most = max(self._most, self._in_use)
            return buffer

    def _find(self, shape: Shape) -> Tensor:
        for at in reversed(range(len(self._free))):
            if self._free[at][0] == shape:
                return self._free.pop(at)[1]
        self.changes += 1
        with torch.inference_mode(False):  # they may come back for training
            found = self._from_another(shape)
            return mapped(*shape.sizes(self.lanes), dtype=shape.dtype) if found is None else found

    def _from_another(self, shape: Shape) -> Tensor | None:
        """Memory of another shape, or None if there may be more; to make room, those that are too small are let go."""
        sizes = shape.sizes(self.lanes)
        size = prod(sizes) * shape.dtype.itemsize
        while not self._room(size):
            capacity = {
                at: _capacity(buffer) for at, (was, buffer) in enumerate(self._free) if was not in self._used
            }
            if not capacity:
                return None
            fitting = [at for at, each in capacity.items() if each >= size]
            if fitting:
                _, buffer = self._free.pop(min(fitting, key=capacity.__getitem__))
                empty = torch.empty(0, dtype=shape.dtype, device=CPU)
                taken = empty.set_(buffer.untyped_storage(), 0, sizes)  # pyright: ignore[reportCallIssue]
                return taken.zero_() if shape.border else taken
            self._free.pop(max(capacity, key=capacity.__getitem__))
        return None

    def _room(self, size: int) -> bool:
        free = sum(_capacity(buffer) for _, buffer in self._free)
        return free + self._in_use + size <= SLACK * max(self._most, self._in_use + size)

    def give(self, shape: Shape, buffer: Tensor) -> None:
        with self._lock:
            self._in_use -= _capacity(buffer)
            self._free.append((shape, buffer))

    def state(self) -> tuple[list[tuple[Shape, Tensor]], int]:
        """What is free, and what is in use."""
        return list(self._free), self._in_use

    def set_state(self, state: tuple[list[tuple[Shape, Tensor]], int]) -> None:
        free, self._in_use = state
        self._free = list(free)

    def __deepcopy__(self, memo: dict[int, object]) -> "Buffers":
        return Buffers(self.lanes)


def _capacity(buffer: Tensor) -> int:
    """Bytes of the buffer's memory, however much of it is in use."""
    return buffer.untyped_storage().nbytes()
