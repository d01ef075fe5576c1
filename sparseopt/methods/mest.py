"""MEST, memory-economic sparse training (Yuan et al. 2021): SET whose drop score knows how fast a weight is changing.

A weight goes if |w| + lam |gradient| is small: a small weight that is on its way is spared. Growth is random. Gradients of
inactive weights are never read. With `soft=True` (the paper's soft memory bound, EM&S) an update grows before it drops: the
new weights train beside the old ones until the next update, which drops the weakest of all, and the last update gives the
surplus back. Between updates a layer then has more active weights than asked for, by the fraction of the moment.

The authors' code says the same by two sparsities, prune to the lower bound and grow to the upper. Its default for lam is 0; and
its training loop sets the gradient to 0 before an update reads it, so it drops by magnitude whatever lam is.

>>> import torch, sparseopt as so
>>> method = so.MEST(total_steps=100, lam=1.0)
>>> method.drop_score(torch.tensor([0.1, 0.2]), torch.tensor([0.5, 0.1]), None)
tensor([0.6000, 0.3000])
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparseopt.methods.set import SET
from sparseopt.methods.view import Count, Memory, Views


@dataclass(frozen=True)
class MEST(SET):
    """Drop by magnitude plus `lam` times |gradient|; grow at random, after the drop or (`soft`) before it.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: share of the active weights that the first update moves.
        every: optimizer steps between two updates of the masks.
        until: share of total_steps after which the masks stay as they are.
        drop_decay: "cosine" lets drop_fraction fall to 0 as half a cosine, "constant" keeps it until the end.
        lam: weight of |gradient| in the score that decides what is dropped.
        soft: grow before the drop, so that new weights are trained before they can be dropped again.
    """

    lam: float = 0.1
    soft: bool = False
    uses_gradient: ClassVar[bool] = True
    moves_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lam >= 0:
            raise ValueError(f"lam must not be negative, got {self.lam}")

    def needs_dense_grad(self, step: int) -> bool:
        return False

    def due(self, step: int) -> bool:
        return super().due(step) or (self.soft and step in (0, math.ceil(self.end)))

    def drop_score(self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None) -> Tensor:
        return weight.abs() if grad is None else weight.abs() + self.lam * grad.abs()

    def changes_counts(self) -> bool:
        return self.soft

    def moves_unreached(self) -> bool:
        """The surplus is given back whether the loss reaches a layer or not."""
        return self.soft

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        if not self.soft:
            return super().counts(views, step, memory)
        fraction = self.drop_fraction_at(step) if step else 0.0  # at the start only the counts are noted
        counts: dict[str, Count] = {}
        for name, view in views.items():
            asked = int(memory.numbers.setdefault(name, view.active()))
            more = (
                0 if view.grad is None else math.floor(fraction * asked)
            )  # where nothing is trained, nothing is tried
            counts[name] = Count(min(asked, view.active()), min(asked + more, view.mask.numel()))
        return counts

    def cost_at(self, step: int, sparse: float) -> float:
        surplus = self.drop_fraction_at(step // self.every * self.every) if self.soft else 0.0
        grown = self.soft and self.every <= step < self.end
        return min(1.0, sparse * (1 + surplus)) if grown else sparse
