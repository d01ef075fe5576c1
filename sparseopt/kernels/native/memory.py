"""Tensors as the kernels need them, whatever the default device and dtype of the process are."""

import mmap
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

from sparseopt.topology.heap import give_back

CPU = torch.device("cpu")

# Bytes from which memory is mapped by itself: when let go it leaves no hole that a larger one cannot fill.
MAPPED = 1 << 16
HUGE = 2 << 20  # bytes of a huge page


def floats(*sizes: int) -> Tensor:
    """Not yet filled."""
    return torch.empty(sizes, dtype=torch.float32, device=CPU)


def zeros(*sizes: int) -> Tensor:
    return torch.zeros(sizes, dtype=torch.float32, device=CPU)


def doubles(*sizes: int) -> Tensor:
    """Not yet filled."""
    return torch.empty(sizes, dtype=torch.float64, device=CPU)


def mapped(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros that go back to the system, and not to the allocator, when nobody refers to them any more."""
    size = dtype.itemsize * prod(sizes)
    if size < MAPPED or not hasattr(mmap, "MAP_PRIVATE"):
        return torch.zeros(sizes, dtype=dtype, device=CPU)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no {size:,} bytes for what the sparse kernels keep: {error}") from error
    if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a hint, which not every system takes
            memory.madvise(mmap.MADV_HUGEPAGE)  # walking through small pages costs a twentieth of the time
    return torch.frombuffer(memory, dtype=dtype).view(sizes)


class HighWater:
    """Inputs that are larger than all before them leave the tensors of those as holes in the heap, too small to be used again.

    glibc keeps such holes for itself, and sizes that grow little by little would hold many times the memory of the largest. So
    they go back to the system whenever an input is an eighth larger than at the last time. Inputs of one size never cause it.
    """

    def __init__(self) -> None:
        self._level = MAPPED // 4

    def reached(self, size: int) -> None:
        """`size`: elements of an input."""
        if size > self._level:
            self._level = size + size // 8
            give_back()
