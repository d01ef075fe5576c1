"""GraNet (Liu et al. 2021): gradual magnitude pruning, and at every update a share is dropped and regrown by gradient.

Pruning is GMP's, by one threshold over the network, from a topology of the sparsity `start` (0.5 in the paper's
sparse-to-sparse setting, 0 in its dense-to-sparse one) until `prune_until`. After each pruning, "neuroregeneration": of what
is left, the cosine-decayed fraction of smallest magnitude goes, and as many come back in the same layer where |gradient| is
largest. That goes on until `until`, after pruning has ended.

The reference code rounds the number regrown up (`ceil`), and lets its cosine end at 0.005; here it is rounded down and ends
at 0. There updates fall on multiples of `every` counted from step 0, also where pruning begins later; here from `begin`.

>>> import sparseopt as so
>>> method = so.GraNet(total_steps=1000, sparsity=0.9)
>>> method.starts_at(), method.due(800)
(0.5, True)
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sparseopt.methods.gmp import GMP
from sparseopt.methods.view import Count, Memory, Views


@dataclass(frozen=True)
class GraNet(GMP):
    """GMP with regrowth by |gradient|.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: share of the active weights that an update moves besides what it prunes.
        every: optimizer steps between two updates of the masks.
        until: share of total_steps after which the masks stay as they are.
        drop_decay: "cosine" lets drop_fraction fall to 0 as half a cosine, "constant" keeps it until the end.
        sparsity: share of zeros that it ends at.
        start: share of zeros that it begins with.
        begin: share of total_steps before which nothing is pruned.
        scope: "layer" prunes every layer to its own sparsity, "global" the smallest weights of the network.
        distribution: how the sparsity is shared among the layers where each has its own: "uniform", "erk" or "er".
        prune_until: share of total_steps at which the sparsity is reached.
    """

    drop_fraction: float = 0.5
    until: float = 1.0
    start: float = 0.5
    scope: Literal["layer", "global"] = "global"
    prune_until: float = 0.7
    uses_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.prune_until <= 1:
            raise ValueError(
                f"prune_until is a share of total_steps and must be in [0, 1], got {self.prune_until}"
            )

    def due(self, step: int) -> bool:
        regrows = 0 < step < self.end and step > self.first and (step - self.first) % self.every == 0
        return regrows or super().due(step)

    def grow_score(self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None) -> Tensor:
        assert grad is not None
        return grad.abs()

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        fraction = self.drop_fraction_at(step)
        return {
            name: self._moved(count, fraction if views[name].grad is not None else 0.0)
            for name, count in self.pruned_counts(views, step, memory).items()
        }

    def moves_unreached(self) -> bool:
        return True  # they are pruned; nothing grows in them

    def _pruned_by(self) -> float:
        return self.share(self.prune_until)
