"""Do all ranks have the same masks? They must, without ever sending them: draws are keyed, gradients averaged.

Should they differ all the same (a rank with another seed, a gradient that was not averaged), training would go on and be
wrong. So at every update the ranks compare a 64-bit digest of all new masks, and stop if it differs.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch import distributed as dist

from sparseopt.topology.bits import pack
from sparseopt.topology.dense_grads import ranks


def check_agreement(masks: Mapping[str, Tensor], step: int) -> None:
    """Raise RuntimeError on every rank, naming the layers, if the masks differ between the ranks."""
    if ranks() == 1 or not masks:
        return
    first = next(iter(masks.values())).device
    digests = torch.stack([digest(mask).to(first) for mask in masks.values()])
    mine = digest(digests.view(torch.uint8)).view(1)
    everyone = [torch.empty_like(mine) for _ in range(ranks())]
    dist.all_gather(everyone, mine)
    if all(torch.equal(mine, other) for other in everyone):
        return
    by_layer = [dict[str, int]() for _ in everyone]
    dist.all_gather_object(by_layer, dict(zip(masks, digests.tolist(), strict=True)))
    names = dict.fromkeys(name for layers in by_layer for name in layers)
    differing = [name for name in names if len({layers.get(name) for layers in by_layer}) > 1]
    raise RuntimeError(
        f"the ranks disagree on the new masks of {', '.join(differing)} at step {step}: they must see the same averaged "
        "gradients, weights and seed; is a rank's model outside DistributedDataParallel, or its seed another one?"
    )


def digest(data: Tensor) -> Tensor:
    """64 bits that differ if the bytes (or bools) do, as a 0-d tensor on their device."""
    packed = pack(data) if data.dtype == torch.bool else data.reshape(-1)
    packed = torch.nn.functional.pad(packed, (0, -packed.numel() % 8))
    words = packed.view(torch.int64)
    position = torch.arange(1, words.numel() + 1, device=words.device)
    mixed = (words ^ (words >> 29)) * (2 * position * 0x5851F42D4C957F2D + 1)  # wraps, as it should
    return ((mixed ^ (mixed >> 32)) * 0x2545F4914F6CDD1D).sum()
