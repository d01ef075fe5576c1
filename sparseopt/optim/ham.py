"""HAM: a multiplicative step after the base optimizer's, which lets weights change sign and stay small where they should.

After the base step, every weight tensor (ndim >= 2; not biases, not norm layers) is multiplied elementwise:

    w <- w * exp(clamp(lr * (-alpha * sign(w) * g - beta), -5, 5))

with the sign after the base step and g the gradient the base optimizer saw. In the limit of small steps this is gradient flow
in the metric whose inverse is 1 + alpha |w|. Exact zeros stay zero, so it composes with sparse training:

>>> import torch, sparseopt as so
>>> model = torch.nn.Linear(8, 4)
>>> topology = so.sparsify(model, 0.5)
>>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
>>> optimizer = so.SparseOpt(so.HAM(sgd, alpha=80.0), topology, so.SET(total_steps=1000))
"""

from collections.abc import Callable, Mapping
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparseopt.optim.wrapper import OptimizerWrapper, StateDict

LIMIT = 5.0  # largest |exponent|: one step changes no weight by more than a factor of e^5


class HAM(OptimizerWrapper):
    """HAM around any optimizer. `ham_alpha` and `ham_beta` live in the parameter groups: schedulable, saved.

    Args:
        base: any optimizer, built with its options and learning rates.
        alpha: strength of the multiplicative step: the inverse metric is 1 + alpha |w|.
        beta: decay within the multiplicative step.
    """

    def __init__(self, base: Optimizer, alpha: float = 80.0, beta: float = 0.0) -> None:
        super().__init__(base)
        if "ham_alpha" in base.defaults:
            raise ValueError("HAM goes around an optimizer once: this one has it already")
        if not alpha >= 0:
            raise ValueError(f"alpha must be at least 0, got {alpha}")
        if not beta >= 0:
            raise ValueError(f"beta must be at least 0, got {beta}")
        base.defaults |= {"ham_alpha": alpha, "ham_beta": beta}
        self._complete_groups()

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        seen: dict[Tensor, Tensor] = {}
        if closure is None:
            self._see(seen)
            loss = self.base.step()
        else:
            loss = self.base.step(self._seeing(closure, seen))
        with torch.no_grad():
            for group in self.param_groups:
                _multiply(group, seen)
        return loss

    def _see(self, seen: dict[Tensor, Tensor]) -> None:
        """Keep the gradients as the base optimizer gets them: it may change them, as SGD with Nesterov's momentum does."""
        weights = (each for group in self.param_groups for each in group["params"] if each.ndim >= 2)
        seen.update({each: each.grad.detach().clone() for each in weights if each.grad is not None})

    def _seeing(self, closure: Callable[[], float], seen: dict[Tensor, Tensor]) -> Callable[[], float]:
        def watched() -> float:
            loss = closure()
            seen.clear()
            self._see(seen)
            return loss

        return watched

    def _complete_groups(self) -> None:
        """Give alpha and beta to the groups that have none of their own."""
        for group in self.param_groups:
            for option in ("ham_alpha", "ham_beta"):
                group.setdefault(option, self.defaults[option])

    def _load_own_state(self, state: StateDict) -> None:
        self._complete_groups()  # the state may have been saved without HAM


def _multiply(group: dict[str, Any], gradients: Mapping[Tensor, Tensor]) -> None:
    direction = 1.0 if group.get("maximize", False) else -1.0
    for parameter in group["params"]:
        if parameter not in gradients:
            continue
        exponent = parameter.sign().mul_(gradients[parameter]).mul_(direction * group["ham_alpha"])
        exponent.sub_(group["ham_beta"]).mul_(group["lr"]).clamp_(-LIMIT, LIMIT)
        parameter.mul_(exponent.exp_())
