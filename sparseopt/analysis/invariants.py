"""What gradient flow and HAM flow conserve in a neuron a * relu(gamma * x̂ + beta), and when `a` can change its sign.

Masks and the skew correction act on the inner weights only, so both quantities are conserved with and without them:

    gradient flow   a^2 - gamma^2 - beta^2
    HAM flow        F(a) - (gamma^2 + beta^2) / 2,   F(x) = integral of p / (1 + alpha |p|) from 0 to x

HAM flow is the Riemannian gradient flow whose inverse metric is 1 + alpha |w| for weights and 1 for BatchNorm's parameters;
alpha -> 0 gives back gradient flow, F(x) -> x^2 / 2.
"""

import torch
from torch import Tensor


def ham_potential(x: Tensor, alpha: float) -> Tensor:
    """F(x) = (alpha |x| - ln(1 + alpha |x|)) / alpha^2, even in x.

    Near zero the two terms nearly cancel; there the series x^2 (1/2 - t/3 + t^2/4 - t^3/5), t = alpha |x|, is exact.
    """
    t = alpha * x.abs()
    series = x.square() * (1 / 2 - t / 3 + t.square() / 4 - t.pow(3) / 5)
    if alpha == 0:
        return series
    return torch.where(t < 1e-3, series, (t - t.log1p()) / alpha**2)


def invariant(a: Tensor, gamma: Tensor, beta: Tensor, alpha: float) -> Tensor:
    """The invariant of the flow with HAM's alpha, on the scale of a^2: for alpha = 0, a^2 - gamma^2 - beta^2.

    Where it is negative the flow may carry `a` through zero; for the balanced start of gradient flow it is zero, and `a` can
    shrink but not cross.

    >>> invariant(torch.tensor(3.0), torch.tensor(2.0), torch.tensor(1.0), 0.0)
    tensor(4.)
    """
    return 2 * ham_potential(a, alpha) - gamma.square() - beta.square()


def norm_radius(a: Tensor, alpha: float, level: float = 0.0) -> Tensor:
    """sqrt(gamma^2 + beta^2) on the set where the `invariant` equals the level; NaN where the set has no such `a`.

    This is the shape of the invariant set. For gradient flow at level 0 it is the cone |a|, which meets a = 0 in a
    single singular point; a negative level opens a neck through which `a` can pass.
    """
    return (2 * ham_potential(a, alpha) - level).sqrt()
