"""The skew neuron by neuron: how a neuron's gradient scale depends on its fan-in, and what the correction leaves of it.

All functions take (neurons, inputs) matrices, as `Layer.by_neuron` gives them. The law under BatchNorm is a power law: the
gradient scale of neuron i is proportional to (1 - s_i)^(-1/2), a line of slope -1/2 in logarithms.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class PowerLaw(NamedTuple):
    """A least-squares fit log y = intercept + slope log x, with the slope's standard error."""

    slope: float
    intercept: float
    error: float


def neuron_scale(grad: Tensor, mask: Tensor) -> Tensor:
    """Mean |gradient| of each neuron's active weights; NaN for a neuron without inputs.

    >>> neuron_scale(torch.tensor([[1.0, -3.0, 9.0]]), torch.tensor([[True, True, False]]))
    tensor([2.])
    """
    return (grad.abs() * mask).sum(dim=1) / mask.sum(dim=1)


def angular_rate(weight: Tensor, grad: Tensor, mask: Tensor) -> Tensor:
    """||g_i|| / ||w_i|| of each neuron: how fast a unit step turns its weight vector.

    BatchNorm makes g_i orthogonal to w_i and the length of w_i meaningless, so this is a neuron's true learning
    rate; at initialisation it is what the correction equalises.
    """
    return (grad * mask).norm(dim=1) / (weight * mask).norm(dim=1)


def cosine(first: Tensor, second: Tensor) -> float:
    """Cosine of the angle between two tensors seen as vectors; NaN if one of them is zero."""
    first, second = first.flatten().double(), second.flatten().double()
    return float(first @ second / (first.norm() * second.norm()))


def angle(first: Tensor, second: Tensor) -> float:
    """The angle between two tensors seen as vectors, in degrees."""
    return float(torch.tensor(cosine(first, second)).clamp(-1, 1).acos().rad2deg())


def power_law(x: Tensor, y: Tensor) -> PowerLaw:
    """Fit y = c x^slope over the positive, finite pairs; all NaN if x takes fewer than two values among them.

    >>> round(power_law(torch.tensor([1.0, 4.0, 16.0]), torch.tensor([3.0, 6.0, 12.0])).slope, 6)
    0.5
    """
    usable = (x > 0) & (y > 0) & x.isfinite() & y.isfinite()
    log_x, log_y = x[usable].double().log(), y[usable].double().log()
    centred = log_x - log_x.mean()
    spread = centred.square().sum()
    if len(log_x) < 2 or spread < 1e-12 * len(log_x):
        return PowerLaw(float("nan"), float("nan"), float("nan"))
    slope = (centred * log_y).sum() / spread
    intercept = log_y.mean() - slope * log_x.mean()
    residual = (log_y - intercept - slope * log_x).square().sum()
    error = (residual / max(len(log_x) - 2, 1) / spread).sqrt()
    return PowerLaw(float(slope), float(intercept), float(error))


def orthogonality_loss(fan_in: Tensor) -> Tensor:
    """What BatchNorm takes from a small neuron: sqrt(1 - 1/k) of the gradient's root mean square, for fan-in k.

    The gradient of k weights has no component along the weights themselves. For inputs without preferred direction
    that removes one of k equal parts of its square; with a single input nothing is left.
    """
    return (1 - 1 / fan_in).sqrt()
