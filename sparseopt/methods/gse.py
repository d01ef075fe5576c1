"""GSE, guided stochastic exploration (Heddes et al. 2024): RigL that looks at a random subset of the inactive weights only.

At an update, `subset` times as many inactive weights as there are active ones are drawn, and growth takes those of them with
the largest |gradient|. Only the gradient of active and drawn weights is needed, so a step costs what the active weights cost,
at any sparsity; and growth is less greedy than RigL's.

The paper draws by one of three distributions; this is its uniform one. Its other two follow sums of activations and of
gradients of the neurons, which an optimizer does not see. Here the gradient comes from an ordinary backward pass, which is
dense on dense storage: the saving is counted in FLOPs (`cost_at`), not had.

The authors' code departs from RigL further than the subset: it draws places of the whole matrix, active ones among them and some
twice, and looks at all of them where half or more is active; takes one threshold for all layers, grows before it drops what was
not just grown, and takes the gradient from batches of its own (10 images a class). Here, layers keep their counts, and the
gradient is that of the training step.

>>> import sparseopt as so
>>> round(so.GSE(total_steps=1000, subset=2.0).cost_at(100, sparse=0.1), 3)
0.167
"""

import math
from dataclasses import dataclass, replace

from torch import Tensor

from sparseopt.methods.rigl import RigL
from sparseopt.methods.view import Count, LayerView
from sparseopt.topology.randomness import uniform
from sparseopt.topology.selection import take_lowest


@dataclass(frozen=True)
class GSE(RigL):
    """Growth by |gradient| within a random subset, `subset` times the size of the active set.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: share of the active weights that the first update moves.
        every: optimizer steps between two updates of the masks.
        until: share of total_steps after which the masks stay as they are.
        drop_decay: "cosine" lets drop_fraction fall to 0 as half a cosine, "constant" keeps it until the end.
        grow_from: the gradient that decides what grows: "original", or "corrected" by the skew correction.
        subset: size of the random subset of inactive weights that growth looks at, relative to the active weights.
    """

    subset: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.subset > 0:
            raise ValueError(f"subset must be positive, got {self.subset}")

    def choose(self, view: LayerView, count: Count) -> Tensor:
        return super().choose(self.looked_at(view, count), count)

    def looked_at(self, view: LayerView, count: Count) -> LayerView:
        """The layer with the gradient of the random subset alone; the rest is not a number."""
        assert view.grad is not None
        draw = uniform(view.generator, *view.mask.shape).to(view.mask.device)
        inactive = view.mask.numel() - view.active()
        drawn = min(max(math.ceil(self.subset * view.active()), count.active - count.keep), inactive)
        subset = take_lowest(draw, ~view.mask, drawn)
        return replace(view, grad=view.grad.masked_fill(~subset, float("nan")))  # ranks below every number

    def cost_at(self, step: int, sparse: float) -> float:
        return sparse if not self.due(step) else (2 * sparse + min(1.0, sparse * (1 + self.subset))) / 3
