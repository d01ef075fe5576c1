"""Why BatchNorm skews the gradients of a sparse layer: its backward pass, written out.

With x the pre-activations of one neuron over a batch, sigma their standard deviation, x̂ = (x - mean) / sigma and
u = dL/dx̂, the chain rule gives

    dL/dx = (u - mean(u) - x̂ mean(u x̂)) / sigma.

Everything in the bracket depends on x̂ alone, which BatchNorm keeps at unit variance whatever the neuron's fan-in.
A neuron that keeps the share 1 - s_i of its inputs has sigma smaller by sqrt(1 - s_i), hence a gradient larger by
(1 - s_i)^(-1/2): that is the skew, and why it differs between the neurons of a layer.
"""

import torch
from torch import Tensor


def normalise(x: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """x̂ and sigma of BatchNorm over the last dimension of x, with torch's biased variance and its eps."""
    sigma = (x.var(dim=-1, correction=0, keepdim=True) + eps).sqrt()
    return (x - x.mean(dim=-1, keepdim=True)) / sigma, sigma


def normalise_backward(grad: Tensor, normalised: Tensor, sigma: Tensor) -> Tensor:
    """dL/dx from dL/dx̂ and what `normalise` returned: the identity above, exact for every eps."""
    along = (grad * normalised).mean(dim=-1, keepdim=True)
    return (grad - grad.mean(dim=-1, keepdim=True) - normalised * along) / sigma


def amplification(sparsity: Tensor | float) -> Tensor:
    """The predicted gradient scale of a neuron of the given sparsity, relative to the dense one: (1 - s)^(-1/2).

    >>> amplification(0.75)
    tensor(2.)
    """
    return (1 - torch.as_tensor(sparsity)).rsqrt()
