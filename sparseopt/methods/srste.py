"""SR-STE, the sparse-refined straight-through estimator (Zhou et al. 2021): n:m sparsity learned from dense weights.

All weights learn; the forward pass uses the n largest of every m inputs of a neuron. The gradient reaches all weights as if
none were cut (straight through), and those that are cut shrink by `decay` w on top of it, so that the choice settles:

    g  <-  g + decay (1 - mask) w

The masks are chosen before the first step and anew after every one. The dense weights lie with the optimizer; the model's own
are n:m at any time. Begin from a dense topology, `sparsify(model, 0.0)`. Layers whose inputs do not divide by m stay dense.
The authors' code does the same inside the layer, group by group along the input channels, with decay 0.0002; which of equal
magnitudes stays is open there, here it is the first.

>>> import sparseopt as so
>>> so.SRSTE(total_steps=100).cost_at(1, sparse=0.5)
0.6666666666666666
"""

from dataclasses import dataclass

from torch import Tensor

from sparseopt.methods.view import Count, LayerView, Memory, Views
from sparseopt.methods.weights import TopMethod
from sparseopt.topology.nm import check_nm, nm_count, nm_mask


@dataclass(frozen=True)
class SRSTE(TopMethod):
    """Forward with the n largest of m, gradient straight through to all weights.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: not used: the n largest of every m are active.
        every: optimizer steps between two updates of the masks.
        until: share of total_steps after which the masks stay as they are.
        drop_decay: not used, either.
        n: active weights ...
        m: ... of every m inputs of a neuron.
        decay: pull of the inactive weights towards zero.
    """

    drop_fraction: float = 0.0
    every: int = 1
    until: float = 1.0
    n: int = 2
    m: int = 4
    decay: float = 2e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_nm(self.n, self.m)
        if not self.decay >= 0:
            raise ValueError(f"decay must not be negative, got {self.decay}")

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        counts = {name: nm_count(view.shaped, self.n, self.m) for name, view in views.items()}
        return {name: Count(0, count) for name, count in counts.items()}

    def choose(self, view: LayerView, count: Count) -> Tensor:
        return nm_mask(view.weight.abs(), view.shaped, self.n, self.m)

    def term(self, view: LayerView, step: int) -> Tensor | None:
        return self.decay * view.weight.masked_fill(view.mask, 0)
