"""DeepR, deep rewiring (Bellec et al. 2018): a connection keeps its sign for life, and dies when training would flip it.

Every step moves an active weight w of sign s by

    w <- w - lr (gradient + l1 s) + sqrt(2 lr temperature) noise

and then each with w s < 0 is dropped, and as many inactive connections of the layer, drawn at random, are grown from zero: one
that has just been dropped may be among them. The noise makes the walk a sampler of networks. Every possible connection has one
sign: that of its weight at the start, a random one where it had none.

The noise enters as a gradient, sqrt(2 temperature / lr) times a normal draw, which no correction or clip changes: with plain
SGD that is the formula, with momentum or Adam the base optimizer shapes it. Signs are remembered with the optimizer's state.
The authors' code for MNIST has noise of standard deviation lr * 1e-5 instead of the paper's sqrt(2 lr temperature), and grows
connections at 1e-12, not 0, since a weight at 0 counts as dropped there.

>>> import sparseopt as so
>>> all(so.DeepR(total_steps=100).due(step) for step in range(100))
True
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sparseopt.methods.view import Count, LayerView, Memory, Views
from sparseopt.methods.weights import WeightMethod
from sparseopt.topology.randomness import uniform

SIGN = "sign"


@dataclass(frozen=True)
class DeepR(WeightMethod):
    """Sign flips kill, growth is random, the gradient has an l1 term and noise.

    Args:
        total_steps: optimizer steps of the whole training, over which the schedule is laid out.
        drop_fraction: not used: a weight that changes its sign is dropped.
        every: steps between two updates.
        until: share of total_steps after which the masks stay as they are.
        drop_decay: not used, either.
        l1: strength of the l1 term of the gradient.
        temperature: of the noise: a step moves a weight by sqrt(2 lr temperature) times a normal draw besides.
    """

    drop_fraction: float = 0.0
    every: int = 1
    until: float = 1.0
    l1: float = 1e-5
    temperature: float = 0.0
    uses_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.l1 >= 0:
            raise ValueError(f"l1 must not be negative, got {self.l1}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must not be negative, got {self.temperature}")

    def due(self, step: int) -> bool:
        return step == 0 or super().due(step)

    def term(self, view: LayerView, step: int) -> Tensor | None:
        term = self.l1 * self._signs(view).to(view.weight.dtype)
        if self.temperature:
            noise = torch.randn(view.mask.shape, generator=view.generator, device="cpu").to(term)
            lr = torch.as_tensor(view.lr).to(term)  # which need not be read, where it is on another device
            term = term + torch.where(lr > 0, 2 * self.temperature / lr, 0.0).sqrt() * noise
        return term

    def drop_score(self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None) -> Tensor:
        return weight  # in the sense of its sign, as `choose` has it

    def grow_score(self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None) -> Tensor:
        return uniform(generator, *weight.shape).to(weight.device)

    def counts(self, views: Views, step: int, memory: Memory) -> dict[str, Count]:
        alive = {name: view.mask & (self._signed(view) >= 0) for name, view in views.items()}
        return {name: Count(int(alive[name].sum()), view.active()) for name, view in views.items()}

    def choose(self, view: LayerView, count: Count) -> Tensor:
        return super().choose(replace(view, weight=self._signed(view)), count)

    def anew(self, view: LayerView) -> Tensor | None:
        return view.mask & (self._signed(view) < 0)

    def _signed(self, view: LayerView) -> Tensor:
        return view.weight * self._signs(view)

    def _signs(self, view: LayerView) -> Tensor:
        if SIGN not in view.memory:
            random = uniform(view.generator, *view.mask.shape).to(view.weight.device) < 0.5
            sign = view.weight.sign().to(torch.int8)
            view.memory[SIGN] = torch.where(sign != 0, sign, 1 - 2 * random.to(torch.int8))
        return view.memory[SIGN]
