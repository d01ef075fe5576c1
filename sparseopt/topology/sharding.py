"""Parameters spread over several ranks: the whole of a tensor, and one rank's part of it.

FSDP2 (`fully_shard`) turns parameters, gradients and optimizer state into DTensors. Masks are sharded as their parameters are.
What is elementwise works on the local parts, which share storage with the DTensor; what needs a whole layer (its scores, its
fan-in) gathers it for the moment. On ordinary tensors all of this is the identity.
"""

import sys
from typing import Any

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    # Importing torch.distributed.tensor takes a second; where nobody has imported it, there are no DTensors.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """This rank's part, sharing its storage."""
    return _sharded(tensor).to_local() if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The tensor as it would be on a single rank. All ranks must ask."""
    return _sharded(tensor).full_tensor() if is_sharded(tensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor that every rank holds whole, on the device of `like` and sharded as it is."""
    tensor = tensor.to(like.device)
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = _sharded(like).device_mesh, _sharded(like).placements
    try:
        return distribute_tensor(tensor, mesh, placements, src_data_rank=None)
    except TypeError:  # torch 2.6 does not know the option and sends rank 0's copy, which is the same
        return distribute_tensor(tensor, mesh, placements)


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a tensor that broadcasts against `like`."""
    if not is_sharded(like):
        return tensor.to(like.device)
    split = [placement.dim for placement in _sharded(like).placements if placement.is_shard()]
    shape = [
        full if d in split else size
        for d, (size, full) in enumerate(zip(tensor.shape, like.shape, strict=True))
    ]
    return local(shard_like(tensor.expand(shape).contiguous(), like))


def gather(part: Tensor, like: Tensor) -> Tensor:
    """The whole of a tensor of which every rank gives its part, shaped and sharded as `like` is. All ranks must ask."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements = _sharded(like).device_mesh, _sharded(like).placements
    return whole(DTensor.from_local(part, mesh, placements, shape=like.shape, stride=like.stride()))


def _sharded(tensor: Any) -> Any:
    return tensor  # a DTensor, whose type is not to be imported here
