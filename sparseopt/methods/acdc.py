"""AC/DC, alternating compressed and decompressed training (Peste et al. 2021).

After a dense warm-up the phases alternate, each `phase` long: compressed, where the largest weights of the network are kept and
trained; and dense, where all weights train again, those that were gone from zero. The last phase is compressed and begins at
`until`; the dense phase before it lasts until then. The whole gives a sparse network and, on the way, dense ones.

Begin from a dense topology: `sparsify(model, 0.0)`. The defaults are those of the authors' CIFAR-100 runs (200 epochs:
warm-up 10, phases of 20, the last from 170); their ImageNet runs (100 epochs: warm-up 10, phases of 5, dense once more from 75
to 85) are `warmup=0.1, phase=0.05, until=0.85`. Optimizer state of weights that go or come is 0, as under every method here; the
authors' scripts set all momentum to 0 where a dense phase begins, that of weights that stay as well. Their threshold is global,
as here (`scope="layer"` prunes each layer alike), but they keep what is strictly above it, so one weight fewer than asked for.

>>> import sparseopt as so
>>> method = so.ACDC(total_steps=200, sparsity=0.9)
>>> [(step, "sparse" if method.compressed(step) else "dense") for step in range(200) if method.due(step)][:3]
[(10, 'sparse'), (30, 'dense'), (50, 'sparse')]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from sparseopt.methods.gmp import largest_of_active
from sparseopt.methods.method import Method
from sparseopt.methods.view import Count, Memory, Views, shapes_of
from sparseopt.topology.densities import active_counts, check_sparsity


@dataclass(frozen=True)
class ACDC(Method):
    """Compressed and dense phases in turn; `warmup`, `phase` and `until` are shares of total_steps.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: not used: a compressed phase begins by pruning to the sparsity.
        every: not used: the masks change where a phase begins.
        until: share of total_steps at which the last compressed phase begins.
        drop_decay: not used, either.
        sparsity: share of zeros that it ends at.
        warmup: share of total_steps that is trained dense first.
        phase: length of each compressed and each dense phase but the last of either, as a share of total_steps.
        scope: "layer" prunes every layer to its own sparsity, "global" the smallest weights of the network.
        distribution: how the sparsity is shared among the layers where each has its own: "uniform", "erk" or "er".
    """

    drop_fraction: float = 0.0
    until: float = 0.85
    sparsity: float = 0.9
    warmup: float = 0.05
    phase: float = 0.1
    scope: Literal["layer", "global"] = "global"
    distribution: Literal["uniform", "erk", "er"] = "uniform"
    uses_gradient: ClassVar[bool] = False
    moves_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sparsity(self.sparsity)
        if not 0 <= self.warmup <= self.until:
            raise ValueError(f"warmup must be in [0, until={self.until}], got {self.warmup}")
        if not 0 < self.phase <= 1:
            raise ValueError(f"phase is a share of total_steps and must be in (0, 1], got {self.phase}")

    @cached_property
    def switches(self) -> tuple[int, ...]:
        """The steps at which a phase begins: compressed, dense, compressed, ..., the last one compressed."""
        length, first = self.phase * self.total_steps, self.warmup * self.total_steps
        count = int((self.end - first) / length + 1e-9) + 1
        steps = [max(round(first + k * length), 1) for k in range(count)]
        before = steps[: (count - 1) // 2 * 2]  # whole pairs, compressed and dense
        return (*before, max(round(self.end), 1))

    def due(self, step: int) -> bool:
        return step in self.switches

    def compressed(self, step: int) -> bool:
        """Is the network sparse after this step?"""
        return sum(switch <= step for switch in self.switches) % 2 == 1

    def changes_counts(self) -> bool:
        return True

    def starts_at(self) -> float | None:
        return 0.0

    def cost_at(self, step: int, sparse: float) -> float:
        return sparse if self.compressed(step) else 1.0

    def final_counts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        return {} if self.scope == "global" else active_counts(shapes, self.sparsity, self.distribution)

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        if not self.compressed(step):
            return {name: Count(view.active(), view.mask.numel()) for name, view in views.items()}
        if self.scope == "global":
            kept = largest_of_active(views, 1 - self.sparsity)
        else:
            kept = self.final_counts(shapes_of(views, memory))
        return {name: Count(kept[name], kept[name]) for name in views}
