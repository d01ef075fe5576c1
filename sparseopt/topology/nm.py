"""n:m sparsity: of every m successive inputs of a neuron at most n are active, as sparse tensor cores want it (2:4).

The inputs of a convolution are taken along its channels, at each place of the kernel, as NVIDIA's and SR-STE's code do. A layer
whose inputs do not divide by m has no such groups.

>>> import torch
>>> layer = Layer("weight", (1, 4))
>>> nm_mask(torch.tensor([[0.1, -3.0, 2.0, 0.5]]).abs(), layer, 2, 4)
tensor([[False,  True,  True, False]])
"""

import torch
from torch import Tensor

from sparseopt.topology.layers import Layer


def check_nm(n: int, m: int) -> None:
    if not 1 <= n < m:
        raise ValueError(f"n:m needs 1 <= n < m, got {n}:{m}")


def parse_nm(text: str) -> tuple[int, int] | None:
    """The two numbers of a text such as "2:4"; None if it is not of that form."""
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return None
    n, m = (int(part) for part in parts)
    check_nm(n, m)
    return n, m


def has_groups(layer: Layer, m: int) -> bool:
    inputs = layer.shape[_axis(layer)]
    return (inputs // layer.groups if layer.transposed else inputs) % m == 0


def to_groups(tensor: Tensor, layer: Layer, m: int) -> Tensor:
    """A tensor of the layer's shape as a matrix of one row for each m successive inputs of a neuron."""
    return tensor.movedim(_axis(layer), -1).reshape(-1, m)


def from_groups(groups: Tensor, layer: Layer) -> Tensor:
    """The inverse of `to_groups`."""
    axis = _axis(layer)
    shape = [size for d, size in enumerate(layer.shape) if d != axis] + [layer.shape[axis]]
    return groups.reshape(shape).movedim(-1, axis).contiguous()


def nm_mask(score: Tensor, layer: Layer, n: int, m: int) -> Tensor:
    """The n of highest score in each group of m; ties go to the lowest index. All, in a layer without groups."""
    if not has_groups(layer, m):
        return torch.ones_like(score, dtype=torch.bool)
    return from_groups(rank_in_group(to_groups(score, layer, m)) < n, layer)


def nm_count(layer: Layer, n: int, m: int) -> int:
    """Active weights of the layer under n:m."""
    return layer.size * n // m if has_groups(layer, m) else layer.size


def rank_in_group(score: Tensor) -> Tensor:
    """0 for the highest score of a row, and so on."""
    return score.argsort(dim=1, descending=True, stable=True).argsort(dim=1, stable=True)


def _axis(layer: Layer) -> int:
    """Where the inputs are."""
    return 0 if layer.transposed else 1
