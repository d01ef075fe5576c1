"""SNFS, sparse networks from scratch, or sparse momentum (Dettmers and Zettlemoyer 2019).

The gradient of every weight, inactive ones included, is smoothed over steps: M <- momentum M + (1 - momentum) g. At an update
every layer drops its fraction of smallest magnitude. What was dropped in all is shared out among the layers in proportion to
the mean |M| of their active weights, and grown in each where |M| is largest among the inactive. So a layer whose weights are
on the move gains connections, and the total stays exact.

The gradient is dense at every step, and M costs the memory of the dense network: it is remembered with the optimizer's state,
whole on each rank. The authors' code takes the momentum of the base optimizer (for Adam, divided by the root of its second
moment), spares layers that are nearly dense, rounds what is dropped and what each layer gets up, and evens that out over the
next updates; here M is its own, the drop is rounded down, and counts are exact at once. As there, the share that is dropped falls
as half a cosine over all of the training; there to 0.005, here to 0. RigL's code has an SNFS whose layers trade nothing.

>>> import sparseopt as so
>>> so.SNFS(total_steps=1000).needs_dense_grad(1)
True
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sparseopt.methods.dsr import shared_growth
from sparseopt.methods.view import Count, LayerView, Memory, Views
from sparseopt.methods.weights import WeightMethod

MOMENTUM = "momentum"


@dataclass(frozen=True)
class SNFS(WeightMethod):
    """Growth by the magnitude of the momentum, redistribution between layers by its mean.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: share of the active weights that the first update moves.
        every: optimizer steps between two updates of the masks.
        until: share of total_steps after which the masks stay as they are.
        drop_decay: "cosine" lets drop_fraction fall to 0 as half a cosine, "constant" keeps it until the end.
        momentum: decay of the running mean of the gradient that growth looks at.
    """

    drop_fraction: float = 0.5
    until: float = 1.0
    momentum: float = 0.9
    uses_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")

    def due(self, step: int) -> bool:
        return step == 0 or super().due(step)  # at the start M is set up, at 0

    def needs_dense_grad(self, step: int) -> bool:
        return step < self.end

    def changes_counts(self) -> bool:
        return True

    def watch(self, view: LayerView, step: int) -> None:
        if view.grad is not None and step < self.end:
            view.memory[MOMENTUM] = self.momentum * view.memory[MOMENTUM] + (1 - self.momentum) * view.grad

    def grow_score(self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None) -> Tensor:
        assert grad is not None
        return grad.abs()

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        if step == 0:
            for view in views.values():
                view.memory[MOMENTUM] = torch.zeros_like(view.weight)
            return {name: Count(view.active(), view.active()) for name, view in views.items()}
        fraction = self.drop_fraction_at(step)
        kept = {
            name: max(self._moved(view.active(), fraction).keep, view.least()) for name, view in views.items()
        }
        dropped = sum(view.active() - kept[name] for name, view in views.items())
        moving = {
            name: float(view.memory[MOMENTUM][view.mask].abs().double().mean())
            for name, view in views.items()
        }
        sizes = {name: view.mask.numel() for name, view in views.items()}
        grown = shared_growth(moving, sizes, kept, dropped)
        return {name: Count(kept[name], kept[name] + grown[name]) for name in views}

    def choose(self, view: LayerView, count: Count) -> Tensor:
        return super().choose(replace(view, grad=view.memory.get(MOMENTUM, view.grad)), count)
