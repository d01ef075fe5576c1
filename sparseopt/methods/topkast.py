"""Top-KAST, top-k always sparse training (Jayakumar et al. 2020): a larger set learns than the forward pass uses.

The forward pass uses A, the largest weights of each layer at the sparsity `sparsity`. The gradient moves B, the largest at
the smaller sparsity `backward_sparsity`, of which A is a part. A weight in B that has grown beyond one of A takes its place.
What falls out of B keeps its value and rests, until the weights of B have shrunk below it. An exploration penalty shrinks the
weights of A by `penalty` w and those of B outside A, which have more to prove, by `penalty` w / D, with D the density of A.

A is the topology's mask; the values outside A lie with the optimizer. Begin from a dense topology, `sparsify(model,
0.0)`: both sets are chosen from it before the first step. `every` may be larger than 1, as the paper recommends for speed (it
loses little up to 100). The penalty is of the l2 kind, half the square; the paper writes it for magnitudes, `penalty_norm=1`.
A weight that returns to B has the value it left with, and zero state. There is no code of the authors; a public one
(torch_topkast) penalises norms of layers, not squares, chooses anew at every step of the first epochs only, and takes what is at
or above a quantile, which may be one weight more than asked for.

>>> import sparseopt as so
>>> so.TopKAST(total_steps=100, sparsity=0.9, backward_sparsity=0.8).cost_at(1, sparse=0.1)
0.13333333333333333
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sparseopt.methods.view import Count, LayerView, Memory, Views, shapes_of
from sparseopt.methods.weights import TopMethod
from sparseopt.topology.densities import active_counts, check_sparsity
from sparseopt.topology.selection import take_highest


@dataclass(frozen=True)
class TopKAST(TopMethod):
    """Forward with the top weights, backward with more of them.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: not used: the top magnitudes are active.
        every: steps between two choices of the active weights.
        until: share of total_steps after which the masks stay as they are.
        drop_decay: not used, either.
        sparsity: share of zeros in the forward pass.
        backward_sparsity: share of weights that get no gradient; at most sparsity.
        penalty: strength of the exploration penalty on the weights.
        penalty_norm: 1 or 2: the norm that is penalised.
        distribution: how the sparsity is shared among the layers where each has its own: "uniform", "erk" or "er".
    """

    drop_fraction: float = 0.0
    every: int = 1
    until: float = 1.0
    sparsity: float = 0.9
    backward_sparsity: float = 0.8
    penalty: float = 1e-4
    penalty_norm: Literal[1, 2] = 2
    distribution: Literal["uniform", "erk", "er"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sparsity(self.sparsity)
        if not 0 <= self.backward_sparsity <= self.sparsity:
            raise ValueError(
                f"backward_sparsity must be in [0, sparsity={self.sparsity}], got {self.backward_sparsity}"
            )
        if not self.penalty >= 0:
            raise ValueError(f"penalty must not be negative, got {self.penalty}")

    def cost_at(self, step: int, sparse: float) -> float:
        backward = min(1.0, sparse * (1 - self.backward_sparsity) / (1 - self.sparsity))
        return (2 * sparse + backward) / 3

    def final_counts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        return active_counts(shapes, self.sparsity, self.distribution)

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        """All weights compete anew: nothing is kept, the largest are grown."""
        counts = self.final_counts(shapes_of(views, memory))
        return {name: Count(0, counts[name]) for name in views}

    def awake(self, view: LayerView, step: int) -> Tensor:
        larger = round(view.active() * (1 - self.backward_sparsity) / (1 - self.sparsity))
        everything = torch.ones_like(view.mask)
        return view.mask | take_highest(view.weight.abs(), everything, min(larger, view.mask.numel()))

    def term(self, view: LayerView, step: int) -> Tensor | None:
        density = view.mask.sum() / view.mask.numel()  # stays on its device
        pull = view.weight if self.penalty_norm == 2 else view.weight.sign()
        return self.penalty * torch.where(view.mask, pull, pull / density)
