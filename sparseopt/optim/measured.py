"""Corrections by what BatchNorm's skew really depends on: the norm of a neuron's weights, as it is now.

Behind BatchNorm a neuron computes the same for w and for any positive multiple of w, so its gradient is that with respect to the
direction u = w / ||w||, divided by the norm: g = (dL/du) / ||w||, at right angles to w. At the start ||w_i|| grows as
sqrt(fan_in_i), and the factor sqrt(1 - s_i) of the paper stands for it; as weights move, fan-in no longer tells the norm. These
factors read the norms at every step, r being their root mean square over the layer's neurons:

- "measured": ||w_i|| / r. The gradient that moves w_i becomes (dL/du_i) / r: whatever the norms, no neuron's gradient is larger
  or smaller for them. At the start this is the paper's "layer", but for the spread of the weights drawn.
- "angular": (||w_i|| / r)^2. What a step turns is u, by (lr / ||w_i||) g = (lr / ||w_i||^2) dL/du_i. With the factor that is
  (lr / r^2) dL/du_i: all neurons of a layer have the same angular (or effective) learning rate at any time.

Where all norms are equal both are 1. A neuron whose weights have all just been grown has norm 0, and BatchNorm's epsilon alone
bounds its gradient; its norm is taken as a hundredth of r, so that it can leave 0. Only the norms are needed, a number a neuron:
a step costs one pass over the active weights, next to nothing beside the network, and there is no state to save.
"""

from typing import Literal

import torch
from torch import Tensor

from sparseopt.topology import Topology
from sparseopt.topology.sharding import whole
from sparseopt.topology.storage import Packed, Storage

MeasuredMode = Literal["measured", "angular"]
POWERS: dict[str, int] = {"measured": 1, "angular": 2}
LEAST = 1e-4  # of a squared norm, relative to the mean


def norm_factors(squares: Tensor, power: int) -> Tensor:
    """(||w_i|| / r)^power from the squared norms of a layer's neurons.

    >>> norm_factors(torch.tensor([1.0, 4.0, 9.0, 2.0]), 2)
    tensor([0.2500, 1.0000, 2.2500, 0.5000])
    """
    mean = squares.mean().clamp(min=torch.finfo(squares.dtype).tiny)
    return (squares / mean).clamp(min=LEAST).pow(power / 2)


def squared_norms(storage: Storage) -> Tensor:
    """||w_i||^2 of every neuron, also of weights that several ranks share.

    Sums are in double precision, so that their order, which is another one in packed storage, makes no difference in single.
    """
    layer, weight = storage.layer, storage.parameter.detach()
    if isinstance(storage, Packed):
        squares = _inexact(weight).square().view(-1).double()
        return squares.new_zeros(layer.neurons).index_add_(0, layer.neuron_of(storage.index), squares)
    if layer.transposed:  # by_neuron moves axes, which sharded tensors may not be able to
        return layer.by_neuron(_inexact(whole(weight))).square().sum(1, dtype=torch.float64)
    return whole(_inexact(weight).square().sum(tuple(range(1, weight.ndim)), dtype=torch.float64))


def measured_by_neuron(storage: Storage, power: int) -> Tensor:
    """The factor of each neuron of a layer at the present weights, in single precision at least."""
    return in_full_precision(norm_factors(squared_norms(storage), power), storage.parameter)


def in_full_precision(factors: Tensor, parameter: Tensor) -> Tensor:
    """On the parameter's device; in single precision also where the weights are in half."""
    double = parameter.dtype in (torch.float64, torch.complex128)
    return factors.to(parameter.device, torch.float64 if double else torch.float32)


def measured_factors(topology: Topology, mode: MeasuredMode) -> dict[str, Tensor]:
    """The factor of each neuron at the present weights; 0 without inputs."""
    made = {}
    for name, storage in topology.storage.items():
        factors = measured_by_neuron(storage, POWERS[mode])
        made[name] = factors * (topology.fan_in(name) > 0).to(factors)
    return made


def _inexact(values: Tensor) -> Tensor:
    """In single precision at least; of complex weights, the absolute values."""
    values = values.abs() if values.is_complex() else values
    return values if values.dtype == torch.float64 else values.float()
