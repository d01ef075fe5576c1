"""The one formula of the paper that a topology alone decides: how BatchNorm scales the gradient of each neuron.

Neuron i with sparsity s_i gets a gradient larger by (1 - s_i)^(-1/2) than in the dense layer. Relative to an average sparsity
s_avg the inverse of that is sqrt((1 - s_i) / (1 - s_avg)): the factor that makes the neurons comparable again.
"""

from torch import Tensor


def relative_scale(density: Tensor, average: Tensor) -> Tensor:
    """sqrt(density_i / average) in float64: above 1 for the neurons denser than average, 0 for those without inputs.

    Only the proportion counts, so fan-in serves as density as well, each times the same number.
    """
    return (density.double() / average).sqrt()
