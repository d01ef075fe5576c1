"""RigL (Evci et al. 2020): SET that grows where the loss would fall fastest, by the magnitude of the dense gradient.

The counts are those of the authors' code, which rounds down as well; so is what happens to a weight that is dropped and grown at
once: it keeps its value. That code makes its first update at step 0, does not count updates as steps, and adds noise of 1e-5 to
the magnitudes, which decides ties. JaxPruner rounds the number that stays to the nearest, and of equal magnitudes drops the last;
here it is the first.

>>> import sparseopt as so
>>> [step for step in range(1, 1001) if so.RigL(total_steps=1000, every=200).due(step)]
[200, 400, 600]
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sparseopt.methods.set import SET


@dataclass(frozen=True)
class RigL(SET):
    """Growth by |gradient|: the original gradient, or the one after the skew correction (`grow_from="corrected"`).

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: share of the active weights that the first update moves.
        every: optimizer steps between two updates of the masks.
        until: share of total_steps after which the masks stay as they are.
        drop_decay: "cosine" lets drop_fraction fall to 0 as half a cosine, "constant" keeps it until the end.
        grow_from: the gradient that decides what grows: "original", or "corrected" by the skew correction.
    """

    grow_from: Literal["original", "corrected"] = "original"
    uses_gradient: ClassVar[bool] = True
    by_parts: ClassVar[bool] = True

    def grow_score(self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None) -> Tensor:
        assert grad is not None
        return grad.abs()

    def reads_corrected_grad(self) -> bool:
        return self.grow_from == "corrected"
