"""A layer's weight as the kernels take it: the active values in, their gradient out, whatever the storage.

Packed storage has both as they are. From a dense weight the values are gathered before a pass, and the gradient is scattered
after it. Where a step reads the gradient of inactive weights too, it is computed from what the layer has read (x) and the
gradient of what it has written (dy): that of a linear layer by torch, on packed storage when the step asks for it, that of a
convolution by a kernel, at once. If only a few inactive weights learn (Top-KAST), they are listed with the active ones, as zeros.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.memory import floats, zeros
from sparseopt.kernels.native.pattern import positions
from sparseopt.topology import Topology
from sparseopt.topology.dense_grads import Rows, join
from sparseopt.topology.scatter import Scatter, scatter_of, scatter_values

NOTHING = floats(0)
LISTED = 0.2
"""Share of a layer's weights that may be listed besides the active ones: with more, all gradients are computed apart as fast."""


def listed_for(topology: Topology) -> tuple[int, bool]:
    """What index lists follow from: the masks, and whether weights outside them learn that alone have a gradient then."""
    return topology.version, bool(topology.dense_grads.learning)


class KernelWeight:
    """The weight of one module. `name` is that of the weight in the model."""

    def __init__(self, module: nn.Conv2d | nn.Linear, name: str | None, topology: Topology) -> None:
        self.module, self.name, self.topology = module, name, topology
        self._lists_learning = False  # is all that learns among the positions?

    @property
    def scatter(self) -> Scatter | None:
        """How the weight is packed; None if it is dense."""
        if "parametrizations" not in self.module._modules:
            return None
        return scatter_of(self.module, "weight")

    @property
    def parameter(self) -> Tensor:
        """What autograd gives the gradient to."""
        return self.module.weight if self.scatter is None else scatter_values(self.module, "weight")

    @property
    def shape(self) -> torch.Size:
        scatter = self.scatter
        return self.module.weight.shape if scatter is None else scatter.shape

    def position(self) -> Tensor:
        """Where the values that count are in the dense weight: the active ones, those that learn besides, or, in a layer that
        is not sparse, all."""
        scatter, self._lists_learning = self.scatter, False
        if scatter is not None:
            return scatter.index.int()
        if self.name is None:  # a pooling, whose channels read themselves alone
            mask = self.module.weight != 0
        else:
            mask = self.topology.masks.get(self.name)
            if mask is None or mask.shape != self.module.weight.shape:
                return torch.arange(self.module.weight.numel(), dtype=torch.int32, device="cpu")
            learning = self.topology.dense_grads.learning.get(self.name)
            # A method may let active weights rest, and masks may be loaded before what learns: all that is active counts.
            if learning is not None and (learning & ~mask).count_nonzero() <= LISTED * mask.numel():
                self._lists_learning, mask = True, mask | learning
        return positions(mask)

    def values(self, position: Tensor) -> Tensor:
        """The active values, to read."""
        if self.scatter is not None:
            self.scatter.tell_beyond()
            return self.parameter.detach().view(-1)
        values = floats(*position.shape)
        operators().gather([self.parameter.detach().contiguous()], [position], [NOTHING], [values])
        return values

    @property
    def dense_wanted(self) -> bool:
        """Does the coming step read the gradient of inactive weights, too?"""
        wanted = self.topology.dense_grads.wanted and self.name in self.topology.storage
        return wanted and not self._lists_learning


class PackedWeights:
    """Packed weights as they are at a forward pass: backward reads them again, where they are."""

    def __init__(self, weights: Iterable[KernelWeight]) -> None:
        self._weights = [each for each in weights if each.scatter is not None]
        self._before = self._versions()

    def check(self) -> None:
        if self._before != self._versions():
            raise RuntimeError(
                "the optimizer has moved the weights since the forward pass whose gradient is asked for: "
                "call backward before step"
            )

    def _versions(self) -> list[tuple[int, int]]:
        """How often the masks have moved, and how often each row was changed in place; values for inference are not."""
        return [
            (each.topology.version, 0 if each.parameter.is_inference() else each.parameter._version)
            for each in self._weights
        ]


def weight_gradients(
    weights: Sequence[KernelWeight],
    values: Sequence[Tensor],
    positions: Sequence[Tensor],
    dense: Sequence[Rows | None],
) -> list[Tensor]:
    """The gradients of the parameters, from those of the active values; `dense` computes rows of those of all weights."""
    found: list[Tensor] = []
    scattered: list[tuple[Tensor, Tensor, Tensor]] = []
    for weight, active, position, every in zip(weights, values, positions, dense, strict=True):
        scatter = weight.scatter
        if scatter is not None:
            if every is not None:
                scatter.grads.give(scatter.name, every)
            found.append(active.view(1, -1))
        elif every is not None:
            found.append(join(every, weight.shape))
        else:
            found.append(zeros(*weight.shape))
            scattered.append((active, position, found[-1]))
    if scattered:
        operators().scatter(*zip(*scattered, strict=True))
    return found
