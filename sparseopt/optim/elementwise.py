"""Which optimizers move every weight by its own gradient and state alone.

For these a vector of some of the weights gets the same numbers as the whole tensor would. It cannot be seen from outside, so they
are named: those of torch, exactly (a subclass may do anything), and HAM around them.
"""

from torch import optim
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from sparseopt.optim.ham import HAM

ELEMENTWISE = (
    *(optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad, optim.Adadelta),
    *(optim.NAdam, optim.RAdam, optim.Adamax, optim.ASGD, optim.Rprop),
)


def is_elementwise(optimizer: Optimizer) -> bool:
    if type(optimizer) is HAM:
        return is_elementwise(optimizer.base)
    recorded = any(group.get("differentiable") for group in optimizer.param_groups)  # by autograd
    return type(optimizer) in ELEMENTWISE and not recorded


def is_watched(optimizer: Optimizer) -> bool:
    """Would anybody see what the optimizer holds while it steps: hooks, or a `step` that was replaced?"""
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return True
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return True
    replaced = vars(optimizer).get("step")  # by a scheduler, which counts the calls, or by who knows what
    if replaced is not None and not hasattr(replaced, "_wrapped_by_lr_sched"):
        return True
    return isinstance(optimizer, HAM) and is_watched(optimizer.base)
