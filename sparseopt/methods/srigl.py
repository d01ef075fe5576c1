"""SRigL, structured RigL (Lasby et al. 2024): RigL under constant fan-in, with neuron ablation.

At an update, layer by layer:

1. salient are the active weights that RigL would keep, by magnitude, and the inactive ones it would grow, by |gradient|;
2. a neuron with fewer than `gamma_sal` times the fan-in salient weights is ablated: it loses all its inputs. As many neurons as
   the layer's weights would fill (rounded down) stay in any case, those with most salient ones;
3. the fan-in becomes k = floor(weights of the layer / neurons left), so ablation makes the others denser;
4. each neuron left keeps its kept weights, the k largest if it has more, and grows by |gradient| up to k.

So every neuron has k inputs or none, and k times the neurons that have some is exact; what the division leaves over is not
used. The number of weights a layer may use is the one it had at the start. An ablated neuron comes back if its gradients make
it salient. Before the first step the layer is brought to constant fan-in: each neuron keeps its largest inputs, and random
ones fill it up.

The authors' code caps a neuron with more than k kept weights by their place, not by magnitude, and counts gradients of active
weights as salient, too; both depart from the paper's text, which is followed here. It also rounds `gamma_sal` times the fan-in
down, counts the weights of ablated neurons among those to be dropped, so that the other neurons keep more of theirs, and never
ablates in the last layer: here, `exclude` it from `sparsify`. `gamma_sal` is 0.3 for their convolutional networks, 0.95 for their
transformer.

>>> import torch, sparseopt as so
>>> mask = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0]]).bool()
>>> weight = torch.tensor([[3.0, 1.0, 0.0, 0.0], [2.0, 0.0, 4.0, 0.0]])
>>> gradient = torch.tensor([[0.0, 0.0, 5.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
>>> so.SRigL(total_steps=100).next_mask(mask, weight, gradient, fraction=0.25).int()
tensor([[1, 0, 1, 0],
        [1, 0, 1, 0]], dtype=torch.int32)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparseopt.methods.rigl import RigL
from sparseopt.methods.view import Count, LayerView, Memory, Views
from sparseopt.topology.nm import rank_in_group
from sparseopt.topology.randomness import uniform
from sparseopt.topology.selection import take_highest, take_lowest


@dataclass(frozen=True)
class SRigL(RigL):
    """Every neuron has the same number of inputs, or none.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: share of the active weights that the first update moves.
        every: optimizer steps between two updates of the masks.
        until: share of total_steps after which the masks stay as they are.
        drop_decay: "cosine" lets drop_fraction fall to 0 as half a cosine, "constant" keeps it until the end.
        grow_from: the gradient that decides what grows: "original", or "corrected" by the skew correction.
        gamma_sal: share of its inputs that must be among the salient ones for a neuron to stay.
    """

    gamma_sal: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma_sal <= 1:
            raise ValueError(f"gamma_sal must be in [0, 1], got {self.gamma_sal}")

    def due(self, step: int) -> bool:
        return step == 0 or super().due(step)

    def needs_dense_grad(self, step: int) -> bool:
        return step > 0 and super().needs_dense_grad(step)

    def changes_counts(self) -> bool:
        return True

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        fraction = self.drop_fraction_at(step) if step else 0.0
        counts: dict[str, Count] = {}
        for name, view in views.items():
            active = view.active()
            may_have = int(memory.numbers.setdefault(name, active))
            keep = self._moved(active, fraction).keep
            left = int(self._left(view, keep, may_have).sum())
            fan_in = min(may_have // left, view.mask.numel() // view.shaped.neurons)
            dense = active == view.mask.numel()
            counts[name] = Count(active, active) if dense else Count(keep, fan_in * left)
        return counts

    def choose(self, view: LayerView, count: Count) -> Tensor:
        layer = view.shaped
        left = self._left(view, count.keep, count.active)
        fan_in = count.active // int(left.sum())
        kept = take_highest(view.weight.abs(), view.mask, count.keep)
        size = layer.by_neuron(view.weight.abs().masked_fill(~kept, -1))
        kept = layer.by_neuron(kept) & (rank_in_group(size) < fan_in)
        if view.grad is None:
            score = layer.by_neuron(uniform(view.generator, *view.mask.shape).to(view.mask.device))
        else:
            score = layer.by_neuron(view.grad.abs())
        chosen = rank_in_group(score.masked_fill(kept, float("inf"))) < fan_in
        return layer.from_neurons(chosen & left.unsqueeze(1))

    def _left(self, view: LayerView, keep: int, weights: int) -> Tensor:
        """Which neurons are not ablated: no more than there are weights for, and no fewer than can hold them."""
        layer, active = view.shaped, view.active()
        salient = view.mask & ~take_lowest(view.weight.abs(), view.mask, active - keep)
        if view.grad is not None:
            salient |= take_highest(view.grad.abs(), ~view.mask, active - keep)
        found = layer.by_neuron(salient).sum(1)
        fan_in = layer.by_neuron(view.mask).sum(1).amax()
        left = found >= (self.gamma_sal * fan_in.double() - 1e-9).clamp(min=1)  # 0.3 of 50 is 15
        if view.grad is None:  # the start: nobody is ablated
            left = torch.ones_like(left)
        count = min(max(int(left.sum()), weights // layer.inputs, 1), max(weights, 1))
        if count != int(left.sum()):  # those with most salient weights
            left = take_highest(found.double(), torch.ones_like(left), count)
        return left
