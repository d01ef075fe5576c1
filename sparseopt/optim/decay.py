"""Weight decay under the correction: what multiplies a neuron's gradient may multiply its decay as well.

The correction c of a neuron acts on the loss gradient; the base optimizer decays all weights alike. Behind BatchNorm the size of
a neuron's weights does not change what it computes, and decides how far a step turns them: with the decay left alone they grow
or shrink until the turn is the same whatever c is, and the correction fades. With `correct_decay=True` the decay is multiplied
by c as well, which, with SGD, makes c a learning rate per neuron and lasts. (Who adds the l2 term to the loss, as Flax's examples
do, gets that without asking. Optimizers that divide a constant factor on gradients out again, as Adam does, divide c out too.)

- Coupled decay (SGD, Adam, ...) adds wd w to the gradient. To become c (g + wd w), the gradient c g gets (c - 1) wd w beforehand.
- Decoupled decay (AdamW) multiplies the weights by 1 - lr wd. To become 1 - c lr wd, they are multiplied by
  (1 - c lr wd) / (1 - lr wd) beforehand.

Both happen after clipping, which is of loss gradients.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from sparseopt.optim.gradients import SparseParameter
from sparseopt.topology.sharding import local

COUPLED = (
    *(optim.SGD, optim.Adam, optim.RMSprop, optim.Adagrad, optim.Adadelta),
    *(optim.Adamax, optim.NAdam, optim.RAdam),
)
DECOUPLED = (optim.AdamW,)


def check_correct_decay(base: Optimizer) -> None:
    """Refuse optimizers of which it is not known what they do with weight decay. A subclass may do anything."""
    if type(base) not in (*COUPLED, *DECOUPLED):
        known = ", ".join(kind.__name__ for kind in (*COUPLED, *DECOUPLED))
        raise ValueError(
            f"correct_decay=True must know how the base optimizer decays weights, which it does of {known}; "
            f"got {type(base).__name__}: use one of them, or correct_decay=False"
        )


@torch.no_grad()
def correct_decay(base: Optimizer, sparse: Iterable[SparseParameter]) -> None:
    """Change gradients (coupled) or weights (decoupled) so that the step to come decays each weight by its factor."""
    groups = {parameter: group for group in base.param_groups for parameter in group["params"]}
    for each in sparse:
        parameter, factors = each.storage.parameter, each.all_factors()
        group = groups[parameter]
        if factors is None or parameter.grad is None or _is_zero(group["weight_decay"]):
            continue
        if _is_decoupled(base, group):
            _turn_decoupled(parameter, factors, group)
        else:
            _turn_coupled(parameter, factors, group)


def _turn_coupled(parameter: Tensor, factors: Tensor, group: Mapping[str, Any]) -> None:
    assert parameter.grad is not None
    # Where the loss is to grow, the optimizer turns the gradient round before it adds the decay.
    sign = -1.0 if group.get("maximize", False) else 1.0
    scale = (factors - 1) * (sign * group["weight_decay"])
    local(parameter.grad).addcmul_(local(parameter.detach()), scale.to(parameter.dtype))


def _turn_decoupled(parameter: Tensor, factors: Tensor, group: Mapping[str, Any]) -> None:
    decay = group["lr"] * group["weight_decay"]
    local(parameter.detach()).mul_(((1 - factors * decay) / (1 - decay)).to(parameter.dtype))


def _is_decoupled(base: Optimizer, group: Mapping[str, Any]) -> bool:
    return type(base) in DECOUPLED or bool(group.get("decoupled_weight_decay", False))


def _is_zero(weight_decay: Any) -> bool:
    return isinstance(weight_decay, int | float) and weight_decay == 0
