"""A multi-layer perceptron with BatchNorm before every ReLU."""

import math
from collections.abc import Sequence

from torch import nn


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int] = (512, 512)) -> nn.Sequential:
    """Flattened image -> (Linear, BatchNorm, ReLU) for every hidden width -> Linear.

    >>> sum(p.numel() for p in mlp((1, 28, 28), 10, (64,)).parameters() if p.dim() > 1)
    50816
    """
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(shape)
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))
