"""The masks after an update: what the method decides for every layer that has a gradient."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sparseopt.methods import Method
from sparseopt.topology import Topology, generator
from sparseopt.topology.sharding import whole


@torch.no_grad()
def next_masks(
    topology: Topology, method: Method, step: int, factors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The new masks, whole, by layer. A layer without a gradient (frozen, or not reached by the loss) is left out.

    The method sees whole layers, also where parameters are sharded: scores are compared over the layer, and ranks decide alike.
    """
    fraction = method.drop_fraction_at(step)
    new: dict[str, Tensor] = {}
    for name, parameter in topology.parameters.items():
        if parameter.grad is None:
            continue
        grad = whole(parameter.grad) if method.uses_gradient else None
        if grad is not None and method.reads_corrected_grad() and name in factors:
            grad = grad * topology.layers[name].broadcast(factors[name])
        draw = generator(topology.seed, step, name)
        mask, weight = whole(topology.masks[name]), whole(parameter.detach())
        new[name] = method.next_mask(mask, weight, grad, fraction, draw)
    return new
