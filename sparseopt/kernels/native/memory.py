"""Tensors as the kernels need them, whatever the default device and dtype of the process are."""

from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")


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
