"""Methods that also have a say in how weights move: extra terms of the gradient, and weights that learn while inactive.

Most methods decide at times who is connected, and leave the weights to the optimizer. Some are part of every step. What they
need beyond `Method` is here: `watch`, which is shown every gradient; `term`, what they add to it; `anew`, who begins again; and,
where weights that the forward pass does not see go on learning, `awake`, the set of all that learn. Between steps the values
of such weights lie aside, with the optimizer; the model's own tensors are exactly zero outside the masks, as under every other
method.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparseopt.methods.method import Method
from sparseopt.methods.view import LayerView


@dataclass(frozen=True)
class WeightMethod(Method):
    """Base of the methods that are part of every step.

    `trains_inactive` says that weights outside the mask learn: gradient and optimizer state are there wherever `awake` says, the
    whole gradient only for methods that go by it (`uses_gradient`). `keeps_inactive` says that the values of all weights are
    remembered; otherwise the inactive ones start each step at 0.
    """

    moves_weights: ClassVar[bool] = True
    trains_inactive: ClassVar[bool] = False
    keeps_inactive: ClassVar[bool] = True

    def needs_dense_grad(self, step: int) -> bool:
        return self.trains_inactive or super().needs_dense_grad(step)

    def watch(self, view: LayerView, step: int) -> None:
        """Shown the gradient of every step as the backward pass left it."""

    def term(self, view: LayerView, step: int) -> Tensor | None:
        """What moves the weights besides the loss: it is added to their gradient, neither corrected nor clipped."""
        return None

    def anew(self, view: LayerView) -> Tensor | None:
        """Mask of the active weights that begin again at zero at this update, also where they are chosen again."""
        return None

    def awake(self, view: LayerView, step: int) -> Tensor:
        """Mask of the weights that learn from now on; `view` has the next mask, and the weights with those lying aside."""
        return view.mask


@dataclass(frozen=True)
class TopMethod(WeightMethod):
    """Base of the methods that begin dense and take the active weights anew, by magnitude, among all that learn."""

    uses_gradient: ClassVar[bool] = False
    trains_inactive: ClassVar[bool] = True

    def due(self, step: int) -> bool:
        return step % self.every == 0 and step <= self.end

    def changes_counts(self) -> bool:
        return True

    def starts_at(self) -> float | None:
        return 0.0

    def grow_score(self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None) -> Tensor:
        return weight.abs()

    def awake(self, view: LayerView, step: int) -> Tensor:
        return torch.ones_like(view.mask)
