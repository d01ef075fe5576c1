"""n:m masks under a method that moves connections: each connection that goes is replaced within its group of m inputs.

`NM(RigL(...))` is RigL that keeps 2:4: its drop score decides, over the layer, which connections go, and its grow score which
other of the same group comes. Every method that keeps its counts can be held to n:m: `Static`, `SET`, `RigL`, `GSE`, `MEST`.
Before the first step the masks are brought to n:m: the largest active weights of a group stay, and random ones fill it up. So
from `sparsify(model, 0.0)` the n largest of each group are kept. Layers whose inputs do not divide by m stay dense. For masks
that follow the magnitude of dense weights at every step see `SRSTE`.

JaxPruner's SET and RigL take n:m as well, but move nothing then: how many of each group stay does not depend on the drop
fraction. Its groups lie along the last axis, which are the outputs of a Flax layer, and where n of m are chosen it takes the last
of equal scores; here it is the first.

>>> import torch, sparseopt as so
>>> mask = torch.tensor([[True, True, False, False]])
>>> weight, gradient = torch.tensor([[1.0, 2.0, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, 3.0, 4.0]])
>>> so.NM(so.RigL(total_steps=100)).next_mask(mask, weight, gradient, fraction=0.5)
tensor([[False,  True, False,  True]])
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from sparseopt.methods.gse import GSE
from sparseopt.methods.method import Method
from sparseopt.methods.schedule import UpdateSchedule
from sparseopt.methods.view import Count, LayerView, Memory, Views
from sparseopt.methods.weights import WeightMethod
from sparseopt.topology.layers import Layer
from sparseopt.topology.nm import check_nm, from_groups, has_groups, nm_count, rank_in_group, to_groups
from sparseopt.topology.randomness import uniform
from sparseopt.topology.selection import take_lowest


@dataclass(frozen=True, init=False)
class NM(Method):
    """A method held to n active weights of every m inputs.

    Args:
        rule: the method that scores what to drop and to grow.
        n: active weights ...
        m: ... of every m inputs of a neuron.
    """

    rule: Method
    n: int
    m: int

    def __init__(self, rule: Method, n: int = 2, m: int = 4) -> None:
        check_nm(n, m)
        if not isinstance(rule, Method):
            raise TypeError(f"NM holds a method to n:m: NM(RigL(...), n=2, m=4), got {rule!r}")
        if rule.changes_counts() or isinstance(rule, WeightMethod | NM):
            raise ValueError(
                f"{type(rule).__name__} does not keep the counts that n:m fixes; NM takes Static, SET, RigL, GSE or MEST"
            )
        if type(rule).choose is not Method.choose and not isinstance(rule, GSE):
            raise ValueError(
                f"{type(rule).__name__} has a choice of its own within a layer, which n:m would leave out; NM takes Static, SET, "
                "RigL, GSE or MEST"
            )
        for field in fields(UpdateSchedule):
            object.__setattr__(self, field.name, getattr(rule, field.name))
        for name, value in (("rule", rule), ("n", n), ("m", m)):
            object.__setattr__(self, name, value)

    @property
    def uses_gradient(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rule.uses_gradient

    @property
    def moves_weights(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rule.moves_weights

    def due(self, step: int) -> bool:
        return step == 0 or self.rule.due(step)

    def needs_dense_grad(self, step: int) -> bool:
        return step > 0 and self.rule.needs_dense_grad(step)

    def reads_corrected_grad(self) -> bool:
        return self.rule.reads_corrected_grad()

    def changes_counts(self) -> bool:
        return True  # at the start

    def cost_at(self, step: int, sparse: float) -> float:
        return self.rule.cost_at(step, sparse)

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        fraction = self.drop_fraction_at(step) if step else 0.0
        counts: dict[str, Count] = {}
        for name, view in views.items():
            wanted = nm_count(view.shaped, self.n, self.m)
            counts[name] = Count(self._moved(view.active(), fraction).keep, wanted)
        return counts

    def choose(self, view: LayerView, count: Count) -> Tensor:
        layer, rule = view.shaped, self.rule
        if isinstance(rule, GSE) and view.grad is not None:
            view = rule.looked_at(view, count)
        if not has_groups(layer, self.m):
            return torch.ones_like(view.mask)
        grad = view.grad if self.uses_gradient else None
        started = grad is not None or not self.uses_gradient
        size = rule.drop_score(view.weight, grad, view.generator) if started else view.weight.abs()
        kept = view.mask & ~take_lowest(size, view.mask, view.active() - count.keep)
        kept = self._best(size.masked_fill(~kept, -float("inf")), layer) & kept
        if int(kept.sum()) == count.active:
            return kept
        grow = (
            rule.grow_score(view.weight, grad, view.generator)
            if started and not _never_grows(rule)
            else uniform(view.generator, *view.mask.shape).to(view.mask.device)
        )
        grow = grow.masked_fill(grow.isnan(), -1.0)  # what the rule does not look at comes last
        return self._best(grow.masked_fill(kept, float("inf")), layer)

    def _best(self, score: Tensor, layer: Layer) -> Tensor:
        return from_groups(rank_in_group(to_groups(score, layer, self.m)) < self.n, layer)


def _never_grows(rule: Method) -> bool:
    return type(rule).grow_score is Method.grow_score
