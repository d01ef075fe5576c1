"""Masks at one bit a weight, for checkpoints and for the union of all masks behind the ITOP rate."""

import torch
from torch import Tensor


def pack(mask: Tensor) -> Tensor:
    """The mask as a flat uint8 tensor, eight weights a byte, the first in the lowest bit.

    >>> pack(torch.tensor([True, False, False, True, False, False, False, False, True])).tolist()
    [9, 1]
    """
    flat = mask.reshape(-1)
    octets = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(-1, 8)
    values = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.float32, device=mask.device)
    return (octets.float() @ values).to(torch.uint8)  # below 256: exact in any float


def pack_index(index: Tensor, size: int) -> Tensor:
    """`pack` of the mask of `size` weights whose active ones are at these positions; nothing of its size is made.

    >>> pack_index(torch.tensor([0, 3, 8]), 9).tolist()
    [9, 1]
    """
    octets = torch.zeros(-(-size // 8), dtype=torch.uint8, device=index.device)
    values = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=index.device)
    return octets.index_add_(0, index >> 3, values[index & 7])


def unpack(packed: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """The boolean mask of the given shape behind `pack`'s bytes."""
    shifts = torch.arange(8, device=packed.device, dtype=torch.uint8)
    flat = ((packed.unsqueeze(1) >> shifts) & 1).bool().view(-1)
    return flat[: torch.Size(shape).numel()].view(shape)
