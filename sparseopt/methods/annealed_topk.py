"""Annealed top-k (Gao et al. 2025, "Weight-sparse transformers have interpretable circuits").

Every step is an ordinary, dense step of the optimizer, after which all but the largest entries of each weight matrix are set
to zero. How many stay is annealed: the density falls linearly from 1 - `start` to 1 - `sparsity` over the first `until` of
training (the first half, in the paper), and stays. A weight that was zero comes in if one step makes it larger than one that
was in. Every neuron keeps its `minimum` largest inputs, or an even share of what its layer has if that is less: none dies.

Begin from a topology of the sparsity `start`, `sparsify(model, 0.0)`. Gradient and optimizer state are dense at every step:
this is a method for what comes out, not for what it costs. The paper also cuts biases, embeddings and activations, scales its
learning rate with the sparsity, and clips the gradient's root mean square; those are the training loop's. The authors' code
begins to anneal after the first hundredth of training, rounds counts down (here: to the nearest), and always scales the gradient,
not only where it is large. Its minimum holds for the weights that go out of a hidden neuron, too, in the layers after it.

>>> import sparseopt as so
>>> method = so.AnnealedTopK(total_steps=1000, sparsity=0.9)
>>> [round(method.density_at(step), 2) for step in (0, 250, 500, 1000)]
[1.0, 0.55, 0.1, 0.1]
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sparseopt.methods.view import Count, LayerView, Memory, Views
from sparseopt.methods.weights import TopMethod
from sparseopt.topology.densities import check_sparsity, share_out
from sparseopt.topology.nm import rank_in_group
from sparseopt.topology.selection import take_highest


@dataclass(frozen=True)
class AnnealedTopK(TopMethod):
    """After every step the top magnitudes of each layer stay; their number falls to the sparsity.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: not used: the top magnitudes stay.
        every: steps between two choices of the active weights.
        until: share of total_steps at which the sparsity is reached.
        drop_decay: not used, either.
        sparsity: share of zeros that it ends at.
        start: share of zeros that it begins with.
        minimum: inputs that every neuron keeps.
    """

    drop_fraction: float = 0.0
    every: int = 1
    until: float = 0.5
    sparsity: float = 0.9
    start: float = 0.0
    minimum: int = 4
    keeps_inactive: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sparsity(self.sparsity)
        if not 0 <= self.start <= self.sparsity:
            raise ValueError(f"start must be in [0, sparsity={self.sparsity}], got {self.start}")
        if not self.minimum >= 0:
            raise ValueError(f"minimum must not be negative, got {self.minimum}")

    def due(self, step: int) -> bool:
        """Also after the annealing: the top is taken anew to the last step. At step 0, to say that all weights learn."""
        return step % self.every == 0 or step == math.ceil(self.end)

    def density_at(self, step: int) -> float:
        left = 1 - step / self.end if step < self.end else 0.0
        return (1 - self.sparsity) + (self.sparsity - self.start) * left

    def starts_at(self) -> float | None:
        return self.start

    def cost_at(self, step: int, sparse: float) -> float:
        share = (self.density_at(step) - (1 - self.sparsity)) / self.sparsity if self.sparsity else 0.0
        return (2 * (sparse + (1 - sparse) * share) + 1) / 3

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        """In all exactly what the density asks for, shared out evenly; what a layer cannot do without, it has in any case."""
        density, sizes = self.density_at(step), {name: view.mask.numel() for name, view in views.items()}
        least = {name: view.least() for name, view in views.items()}
        total = max(round(density * sum(sizes.values())), sum(least.values()))
        room = {name: size - least[name] for name, size in sizes.items()}
        targets = {name: max(density * size - least[name], 0.0) for name, size in sizes.items()}
        beyond = share_out(targets, room, total - sum(least.values()))
        return {name: Count(0, least[name] + count) for name, count in beyond.items()}

    def choose(self, view: LayerView, count: Count) -> Tensor:
        layer, size = view.shaped, view.weight.abs()
        least = min(self.minimum, count.active // layer.neurons)
        first = layer.from_neurons(rank_in_group(layer.by_neuron(size)) < least)
        return first | take_highest(size, ~first, count.active - int(first.sum()))
