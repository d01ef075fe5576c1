"""How connections move: drop the active weights of lowest score, grow as many of highest score elsewhere.

A dynamic-sparse-training method is a schedule and two scores. The usual drop score is the weight's magnitude; the grow score is
what distinguishes the methods. `next_mask` turns the scores into the next mask; it is pure, and exact in its counts. A method
under which layers gain or lose weights says so in `counts`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparseopt.methods.schedule import UpdateSchedule
from sparseopt.methods.view import Count, LayerView, Memory, Views
from sparseopt.topology.selection import take_highest, take_lowest


@dataclass(frozen=True)
class Method(UpdateSchedule):
    """Base of all methods that move connections. A new one overrides `grow_score` or `drop_score`, and seldom more.

    `uses_gradient` says whether a score reads the dense gradient; where it is False, the scores are given None and the
    backward pass need not deliver it. `by_parts`, said by a class of itself alone, allows packed storage to ask for the
    grow scores of one part of a layer after the other, and for drop scores without a gradient. `moves_weights` says that
    weights move at the step of an update, too, and before the connections do.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: share of the active weights that the first update moves.
        every: optimizer steps between two updates of the masks.
        until: share of total_steps after which the masks stay as they are.
        drop_decay: "cosine" lets drop_fraction fall to 0 as half a cosine, "constant" keeps it until the end.
    """

    uses_gradient: ClassVar[bool] = True
    by_parts: ClassVar[bool] = False
    moves_weights: ClassVar[bool] = False

    def drop_score(self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Active weights with the lowest score are dropped: by default those of smallest magnitude."""
        return weight.abs()

    def grow_score(self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Inactive weights with the highest score are grown."""
        raise TypeError(f"{type(self).__name__} does not say where to grow: override grow_score")

    def needs_dense_grad(self, step: int) -> bool:
        """Does this step read the gradient of inactive weights?"""
        return self.uses_gradient and self.due(step)

    def reads_corrected_grad(self) -> bool:
        """Do the scores read the gradient after the skew correction, instead of the one that backward computed?"""
        return False

    def changes_counts(self) -> bool:
        """May the number of active weights of a layer change?"""
        return False

    def moves_unreached(self) -> bool:
        """Does an update also concern layers that the loss has not reached at its step? Where counts follow a schedule."""
        return self.changes_counts() and not self.uses_gradient

    def starts_at(self) -> float | None:
        """The sparsity that a topology must have for this method to begin with; None: any."""
        return None

    def final_counts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """How many active weights each layer is brought to, where that is known before; else nothing."""
        return {}

    def cost_at(self, step: int, sparse: float) -> float:
        """Operations of this step relative to a dense one, where a forward pass at the final sparsity costs `sparse`."""
        return (2 * sparse + (1.0 if self.needs_dense_grad(step) else sparse)) / 3

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        """How many weights each layer keeps and has after the update at this step: by default, as many as before."""
        return {name: self._moved(view.active(), self.drop_fraction_at(step)) for name, view in views.items()}

    def choose(self, view: LayerView, count: Count) -> Tensor:
        """The next mask of a layer: the weights kept, by drop score, and those grown, by grow score.

        Growth chooses among all weights that are inactive after the drop, so a weight that was just dropped may return.
        Ties go to the lowest flat index.
        """
        weight, grad, draw = view.weight, view.grad if self.uses_gradient else None, view.generator
        kept, dropped = view.mask, view.active() - count.keep
        if dropped:
            score = self._checked("drop_score", self.drop_score(weight, grad, draw), view)
            kept = kept & ~take_lowest(score, kept, dropped)
        if count.active == count.keep:
            return kept.clone()
        score = self._checked("grow_score", self.grow_score(weight, grad, draw), view)
        return kept | take_highest(score, ~kept, count.active - count.keep)

    def _checked(self, rule: str, score: Tensor, view: LayerView) -> Tensor:
        if score.shape != view.mask.shape:
            layer = "a layer" if view.layer is None else repr(view.layer.name)
            raise ValueError(
                f"{type(self).__name__}.{rule} must give one score a weight: of {layer}, shape {tuple(view.mask.shape)}, it gave "
                f"shape {tuple(score.shape)}"
            )
        return score if score.is_floating_point() else score.double()

    @torch.no_grad()
    def next_mask(
        self,
        mask: Tensor,
        weight: Tensor,
        grad: Tensor | None,
        fraction: float,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The mask after dropping floor(fraction * active) weights and growing as many. Nothing is changed in place."""
        if self.uses_gradient and grad is None:
            raise ValueError(
                f"{type(self).__name__} reads the dense gradient: next_mask needs grad, got None"
            )
        view = LayerView(mask, weight, grad, generator)
        active = view.active()
        return mask.clone() if active == mask.numel() else self.choose(view, self._moved(active, fraction))

    def _moved(self, active: int, fraction: float) -> Count:
        return Count(active - math.floor(fraction * active), active)
