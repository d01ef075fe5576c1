"""SET, sparse evolutionary training (Mocanu et al. 2018): drop by magnitude, grow at random.

The paper drops the fraction of the positive weights and that of the negative ones, each by magnitude; RigL's code and JaxPruner
take both together, and so does this. The authors' code keeps what is strictly beyond its thresholds, so it drops one positive
weight more than the paper says.

>>> import sparseopt as so
>>> so.SET(total_steps=1000, drop_fraction=0.3).drop_fraction_at(0)
0.3
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparseopt.methods.method import Method
from sparseopt.topology.randomness import uniform


@dataclass(frozen=True)
class SET(Method):
    """Random growth: every inactive weight is equally likely.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: share of the active weights that the first update moves.
        every: optimizer steps between two updates of the masks.
        until: share of total_steps after which the masks stay as they are.
        drop_decay: "cosine" lets drop_fraction fall to 0 as half a cosine, "constant" keeps it until the end.
    """

    uses_gradient: ClassVar[bool] = False
    by_parts: ClassVar[bool] = True

    def grow_score(self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None) -> Tensor:
        return uniform(generator, *weight.shape).to(weight.device)
