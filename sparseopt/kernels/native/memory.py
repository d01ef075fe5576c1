"""Tensors as the kernels need them, whatever the default device and dtype of the process are."""

import mmap
from math import prod
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")

MAPPED = (
    1 << 20
)  # bytes from which memory is mapped by itself: when let go it leaves no hole that a larger one cannot fill
HUGE = 2 << 20  # bytes of a huge page


def floats(*sizes: int) -> Tensor:
    """Not yet filled."""
    return torch.empty(sizes, dtype=torch.float32, device=CPU)


def zeros(*sizes: int) -> Tensor:
    return torch.zeros(sizes, dtype=torch.float32, device=CPU)


def doubles(*sizes: int) -> Tensor:
    """Not yet filled."""
    return torch.empty(sizes, dtype=torch.float64, device=CPU)


def integers(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=CPU)


def mapped(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros that go back to the system, and not to the allocator, when nobody refers to them any more."""
    size = dtype.itemsize * prod(sizes)
    if size < MAPPED or not hasattr(mmap, "MAP_PRIVATE"):
        return torch.zeros(sizes, dtype=dtype, device=CPU)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)  # walking through small pages costs a twentieth of the time
    return torch.frombuffer(memory, dtype=dtype).view(sizes)
