"""What an optimizer does, found out by trying it.

Muon, Shampoo and Adafactor treat a weight as a matrix, Adam and its kin divide the scale of gradients out. Which optimizers do
cannot be seen from outside, and a list of names would miss the next one. So one like it steps on six numbers: as a matrix of two
rows and as one row, with gradients and with twice these; and its state tells what is kept for a weight.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparseopt.optim.wrapper import innermost

NUMBERS = (0.3, -1.0, 0.7, 2.0, -0.4, 0.9)
FASTER = {"fused": None, "foreach": None, "capturable": False}  # other ways to compute the same


def needs_matrices(kind: type[Optimizer], options: Mapping[str, Any]) -> bool:
    """Does a step depend on the shape of the parameter? False where it cannot be tried."""
    try:
        matrix = _tried(kind, options, (2, 3))[0]
    except Exception:  # an optimizer may want anything: other arguments, a closure, a GPU
        return False
    try:
        return not torch.allclose(matrix, _tried(kind, options, (1, 6))[0])
    except Exception:
        return True


def elementwise_state(base: Optimizer) -> Callable[[str], bool]:
    """Of an entry of the state that has the shape of its weight: has it one number for each? A preconditioner of a square layer
    has that shape, too. So the optimizer is tried on one that is not square."""
    base = innermost(base)
    try:
        _, state = _tried(type(base), base.param_groups[0], (2, 3))
    except Exception:  # it cannot be tried: then the shape must do
        return lambda key: True
    others = {key for key, value in state.items() if isinstance(value, Tensor) and value.shape != (2, 3)}
    return lambda key: key not in others


def ignores_scale(base: Optimizer) -> bool:
    """Does a step depend on the direction of a weight's gradients alone, and not on a constant that multiplies them all?"""
    group = base.param_groups[0]
    options = group | ({"weight_decay": 0.0} if "weight_decay" in group else {})
    try:
        start = torch.tensor(NUMBERS, dtype=torch.float64, device="cpu")
        steps = [_tried(type(base), options, (2, 3), scale)[0] - start for scale in (1.0, 2.0)]
    except Exception:
        return False
    moved = torch.linalg.vector_norm(steps[0])
    return bool(moved > 0) and bool(torch.linalg.vector_norm(steps[1] - steps[0]) < 0.01 * moved)


def _tried(
    kind: Any, options: Mapping[str, Any], shape: tuple[int, int], scale: float = 1.0
) -> tuple[Tensor, Mapping[str, Any]]:
    """The numbers after two steps of an optimizer like this one, and its state for them."""
    own = {key: copy.deepcopy(value) for key, value in options.items() if key != "params"}
    own |= {key: value for key, value in FASTER.items() if key in own}
    numbers = torch.tensor(NUMBERS, dtype=torch.float64, device="cpu")
    parameter = nn.Parameter(numbers.view(shape).clone())
    optimizer = kind([{**own, "params": [parameter]}])
    with torch.random.fork_rng(devices=[]):  # a step may draw
        torch.manual_seed(0)
        for factor in (1.0, -0.5):
            parameter.grad = ((numbers.flip(0) * factor + 0.1) * scale).view(shape)
            optimizer.step()
    return parameter.detach().flatten(), optimizer.state.get(parameter, {})
