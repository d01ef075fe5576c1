"""A dense network and its sparse twin: two layers, one initialisation, and the gradients of both at the first layer.

The question of the paper's analyses is always the same: by how much does masking the first layer change the gradient that
arrives there? The twins answer it at initialisation, without any training.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparseopt.topology.layers import Layer

Norm = Callable[[int], nn.Module]

GROUPS = 4
"""GroupNorm divides the neurons into so many groups of neighbours."""

NORMS: dict[str, Norm] = {
    "none": lambda width: nn.Identity(),
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "group": partial(nn.GroupNorm, GROUPS),
}
"""What may stand behind the first layer."""

INITS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "torch": lambda weight, draw: nn.init.kaiming_uniform_(weight, a=5**0.5, generator=draw),
    "he": lambda weight, draw: nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=draw),
    "lecun": lambda weight, draw: nn.init.kaiming_normal_(weight, nonlinearity="linear", generator=draw),
    "glorot": lambda weight, draw: nn.init.xavier_uniform_(weight, generator=draw),
}
"""Weight initialisations by name; `torch` is what `nn.Linear` does."""


class Gradients(NamedTuple):
    """Gradients at the first layer, one entry a batch along the leading axis."""

    weight: Tensor  # (batches, neurons, inputs)
    preactivation: Tensor  # (batches, batch size, neurons)


class TwoLayers(nn.Module):
    """Linear, norm, ReLU, Linear: 784-64-10 in the paper."""

    def __init__(self, sizes: tuple[int, int, int], norm: str = "batch", *, bias: bool = True) -> None:
        super().__init__()
        inputs, hidden, classes = sizes
        self.first = nn.Linear(inputs, hidden, bias=bias)
        self.norm = NORMS[norm](hidden)
        self.second = nn.Linear(hidden, classes, bias=bias)

    @property
    def layer(self) -> Layer:
        """The first layer, in the words of `sparseopt.topology`."""
        return Layer("first.weight", tuple(self.first.weight.shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x))

    def head(self, preactivation: Tensor) -> Tensor:
        """What follows the first layer's pre-activations."""
        return self.second(self.norm(preactivation).relu())


def initialise(model: TwoLayers, init: str, draw: torch.Generator) -> TwoLayers:
    """Draw the weights by the named initialisation, and biases uniformly in +- 1/sqrt(fan-in) as torch does."""
    for linear in (model.first, model.second):
        INITS[init](linear.weight, draw)
        if linear.bias is not None:
            bound = linear.in_features**-0.5
            nn.init.uniform_(linear.bias, -bound, bound, generator=draw)
    return model


def sparse_twin(model: TwoLayers, mask: Tensor) -> TwoLayers:
    """A copy of the model whose first layer keeps only the weights in the mask."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.first.weight *= mask
    return twin


def gradients(model: TwoLayers, images: Tensor, labels: Tensor) -> Gradients:
    """Cross-entropy gradients at the first layer for batches of images (batches, size, inputs) and labels.

    The gradient with respect to the weights is dense: entries outside the mask are the caller's to leave out.
    """
    weight, preactivation = [], []
    for batch, target in zip(images, labels, strict=True):
        x = model.first(batch)
        loss = F.cross_entropy(model.head(x), target)
        grads = torch.autograd.grad(loss, (model.first.weight, x))
        weight.append(grads[0])
        preactivation.append(grads[1])
    return Gradients(torch.stack(weight), torch.stack(preactivation))
