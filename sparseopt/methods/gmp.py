"""GMP, gradual magnitude pruning (Zhu and Gupta 2017): from dense to sparse while training, nothing grows.

At the steps t = t_0, t_0 + every, ..., t_0 + n every the sparsity is raised to

    s_t = s_f + (s_i - s_f) (1 - (t - t_0) / (n every))^3

and the smallest weights go: many at first, when there are many to spare, few at the end. Layer by layer each keeps its own
number, which moves along the same curve from what it has at the start to its share at `sparsity`; with `scope="global"` one
threshold over all layers decides (GraNet's code, and IST's). Weights move at every step.

Begin from a topology of the sparsity `start`: `sparsify(model, 0.0)`, on a fresh network or a trained one.

JaxPruner's schedule is ahead by one step (t + 1 instead of t). GraNet's code rounds the number that stays down and keeps what is
strictly above the threshold, so one weight fewer again, and fewer yet where magnitudes tie; IST's rounds up and does the same.
Here counts are exact, to the nearest.

>>> import sparseopt as so
>>> method = so.GMP(total_steps=1000, sparsity=0.9, every=100, until=0.5)
>>> [round(method.sparsity_at(step), 3) for step in (0, 100, 200, 500, 1000)]
[0.0, 0.439, 0.706, 0.9, 0.9]
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from sparseopt.methods.method import Method
from sparseopt.methods.view import Count, Memory, Views, shapes_of
from sparseopt.topology.densities import active_counts, check_sparsity
from sparseopt.topology.selection import globally_largest


@dataclass(frozen=True)
class GMP(Method):
    """Prune to `sparsity` along a cubic curve, from step `begin * total_steps` to step `until * total_steps`.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: not used: the curve says how many weights are pruned.
        every: optimizer steps between two updates of the masks.
        until: share of total_steps at which the sparsity is reached.
        drop_decay: not used, either.
        sparsity: share of zeros that it ends at.
        start: share of zeros that it begins with.
        begin: share of total_steps before which nothing is pruned.
        scope: "layer" prunes every layer to its own sparsity, "global" the smallest weights of the network.
        distribution: how the sparsity is shared among the layers where each has its own: "uniform", "erk" or "er".
    """

    drop_fraction: float = 0.0
    sparsity: float = 0.9
    start: float = 0.0
    begin: float = 0.0
    scope: Literal["layer", "global"] = "layer"
    distribution: Literal["uniform", "erk", "er"] = "uniform"
    uses_gradient: ClassVar[bool] = False
    moves_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sparsity(self.sparsity)
        if not 0 <= self.start <= self.sparsity:
            raise ValueError(f"start must be in [0, sparsity={self.sparsity}], got {self.start}")
        if not 0 <= self.begin <= 1:
            raise ValueError(f"begin is a share of total_steps and must be in [0, 1], got {self.begin}")

    @property
    def first(self) -> int:
        """The step t_0 at which pruning begins."""
        return round(self.begin * self.total_steps)

    @property
    def interval(self) -> int:
        """`every`, or all the time there is for pruning if that is less: a short training reaches the sparsity, too."""
        return max(min(self.every, math.floor(self._pruned_by()) - self.first), 1)

    @property
    def prunings(self) -> int:
        """n: the number of steps at which the sparsity rises, the first, at which it is still `start`, not counted."""
        return max(math.floor((self._pruned_by() - self.first) / self.interval), 0)

    def due(self, step: int) -> bool:
        if step == 0:  # what each layer begins with is noted
            return True
        if not self.prunings:  # no time for a curve: all at once
            return step == max(self.first, 1)
        k, odd = divmod(step - self.first, self.interval)
        return odd == 0 and 0 <= k <= self.prunings

    def progress_at(self, step: int) -> float:
        """How far the curve has gone at this step: 0 at `start`, 1 at `sparsity`."""
        if step < self.first:
            return 0.0
        left = 1 - (step - self.first) // self.interval / self.prunings if self.prunings else 0.0
        return 1 - max(left, 0.0) ** 3

    def sparsity_at(self, step: int) -> float:
        return self.start + (self.sparsity - self.start) * self.progress_at(step)

    def changes_counts(self) -> bool:
        return True

    def starts_at(self) -> float | None:
        return self.start

    def cost_at(self, step: int, sparse: float) -> float:
        open_share = (self.sparsity - self.sparsity_at(step)) / self.sparsity if self.sparsity else 0.0
        return super().cost_at(step, sparse + (1 - sparse) * open_share)

    def needs_dense_grad(self, step: int) -> bool:
        return step > 0 and super().needs_dense_grad(step)

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        return {name: Count(count, count) for name, count in self.pruned_counts(views, step, memory).items()}

    def pruned_counts(self, views: Views, step: int, memory: Memory) -> dict[str, int]:
        """How many of its active weights each layer still has after pruning at this step."""
        first = {name: int(memory.numbers.setdefault(name, view.active())) for name, view in views.items()}
        if step == 0:
            return first
        if self.scope == "global":
            return largest_of_active(views, 1 - self.sparsity_at(step))
        last = self.final_counts(shapes_of(views, memory))
        left = 1 - self.progress_at(step)
        wanted = {name: round(last[name] + (first[name] - last[name]) * left) for name in views}
        return {name: min(view.active(), wanted[name]) for name, view in views.items()}

    def final_counts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        return {} if self.scope == "global" else active_counts(shapes, self.sparsity, self.distribution)

    def _pruned_by(self) -> float:
        return self.end


def largest_of_active(views: Views, density: float) -> dict[str, int]:
    """How many of the largest active weights of the network lie in each layer, where so many in all are kept."""
    active = sum(view.active() for view in views.values())
    total = min(round(density * sum(view.mask.numel() for view in views.values())), active)
    weights = {name: view.weight[view.mask] for name, view in views.items()}
    return globally_largest(weights, total, {name: view.least() for name, view in views.items()})
