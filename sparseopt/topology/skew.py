"""The one formula of the paper that a topology alone decides: how BatchNorm scales the gradient of each neuron.

Neuron i with sparsity s_i gets a gradient larger by (1 - s_i)^(-1/2) than in the dense layer. Relative to an average sparsity
s_avg the inverse of that is sqrt((1 - s_i) / (1 - s_avg)): the factor that makes the neurons comparable again.
"""

import torch
from torch import Tensor


def relative_scale(density: Tensor, average: Tensor | None = None) -> Tensor:
    """sqrt(density_i / average) in float64; the average defaults to the mean. Fan-in serves as density as well.

    Equal densities give exactly 1, because their mean is computed exactly; neurons without inputs give 0.
    """
    density = density.double()
    if average is None:
        average = density.mean()
    return torch.where(density == average, 1.0, (density / average).sqrt())
