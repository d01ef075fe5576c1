"""Under weight_norm no slice may lose all its weights: it is divided by its norm, and 0 / 0 is not a number.

A slice is a neuron's weights, or whatever else `weight_norm(module, dim=...)` takes a norm of. One that first masks or an update
would leave without a weight other than zero keeps its largest, and another weight of the layer goes for it: those that were to
grow first. A layer needs as many active weights as it has slices (`Layer.least`).
"""

import torch
from torch import Tensor

from sparseopt.topology.layers import Layer
from sparseopt.topology.selection import take_lowest


def keep_slices(new: Tensor, mask: Tensor, weight: Tensor, layer: Layer) -> Tensor:
    """The new mask of a layer under weight_norm, of as many active weights, in which every slice has a norm."""
    size = weight.abs().masked_fill(~mask, 0)
    kept = layer.slices(size.masked_fill(~new, 0))
    lost = (kept.amax(1) == 0) & (layer.slices(size).amax(1) > 0)
    if not bool(lost.any()):
        return new
    largest = _largest(torch.where(lost.unsqueeze(1), layer.slices(size), kept))
    needed = layer.from_slices(largest)
    instead = int((needed & ~new).sum())
    spare = new & ~needed
    if int(spare.sum()) < instead:
        raise ValueError(
            f"{layer.name!r} is under weight_norm, which divides by the norms of its {len(lost)} slices, and "
            f"{int(new.sum())} active weights are too few for them: ask for a lower sparsity, give the layer more by "
            f"distribution={{name: sparsity}}, or leave it dense with exclude={layer.name!r}"
        )
    return (new | needed) & ~take_lowest(size, spare, instead)


def _largest(size: Tensor) -> Tensor:
    """The largest entry of every row that has one other than zero."""
    return torch.zeros_like(size, dtype=torch.bool).scatter_(1, size.argmax(1, keepdim=True), True) & (
        size > 0
    )
