"""What happens to the gradients at an ordinary step, before the base optimizer sees them: masking, correction, clipping.

Renormalisation multiplies all gradients by c / max(||g||, c), with the global l2 norm. What the norm is taken over, and when,
decides what it does:

- "active": over what is about to move the weights, after masking and correction.
- "paper": over the dense gradients scaled by D, before masking; 1 / sqrt(1 - s_avg) multiplies after the clip. At 97%
  sparsity the dense norm is about five times that of the active entries, so the clip acts harder and the late factor gives
  back what it took: this, and not "active", reproduces the paper's renormalised tables. D and the late factor being
  applied apart, equal fan-in gives the base optimizer up to rounding, not to the bit. A correction that is a function has
  no such parts: it acts whole, before the clip.

All of it is elementwise on the device, on each rank's part of the tensors; nothing is read back.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from sparseopt.optim.decay import Decayed
from sparseopt.topology.active import hold_to_mask_
from sparseopt.topology.sharding import local, whole


class SparseParameter(NamedTuple):
    """One sparse parameter, with what its gradient is multiplied by: on a sharded parameter, this rank's part of it."""

    parameter: nn.Parameter
    mask: Tensor  # the bool mask seen as bytes, as `hold_to_mask_` wants it
    early: Tensor | None = (
        None  # factors of the neurons, before the norm is taken; broadcast against the weights
    )
    late: Tensor | None = None  # one number for the layer, after the clip
    measured: Callable[[], Tensor] | None = (
        None  # where factors follow the weights: those of this step, for `early`
    )

    @property
    def grad(self) -> Tensor | None:
        return None if self.parameter.grad is None else local(self.parameter.grad)

    def correct(self) -> None:
        factors = self._factors()
        if factors is not None and self.grad is not None:
            self.grad.mul_(factors)

    def hold_to_mask(self) -> None:
        if self.grad is not None:
            hold_to_mask_(self.grad, self.mask)

    def rescale(self) -> None:
        if self.late is not None and self.grad is not None:
            self.grad.mul_(self.late)

    @property
    def decayed(self) -> Decayed | None:
        """The weights with their whole correction, where there is one."""
        factors = self._factors()
        if factors is None:
            return None
        return Decayed(self.parameter, factors if self.late is None else factors * self.late)

    def _factors(self) -> Tensor | None:
        return self.early if self.measured is None else self.measured()


class ActiveGradient(Protocol):
    """The gradient of a sparse parameter, in whatever form."""

    def hold_to_mask(self) -> None: ...
    def correct(self) -> None: ...
    @property
    def decayed(self) -> Decayed | None: ...


@torch.no_grad()
def prepare_active(
    sparse: Iterable[ActiveGradient], parameters: Iterable[Tensor], max_norm: float | None
) -> Tensor | None:
    """Mask, correct, then clip by the norm of the result. Returns that norm, if a maximum is set."""
    for each in sparse:
        each.hold_to_mask()
        each.correct()
    return clip(parameters, max_norm)


@torch.no_grad()
def prepare_paper(
    sparse: Iterable[SparseParameter], parameters: Iterable[Tensor], max_norm: float | None
) -> Tensor | None:
    """Scale the dense gradients by D, clip by their norm, then mask and multiply by 1 / sqrt(1 - s_avg)."""
    sparse = list(sparse)
    for each in sparse:
        each.correct()
    norm = clip(parameters, max_norm)
    for each in sparse:
        each.hold_to_mask()
        each.rescale()
    return norm


PREPARE = {"active": prepare_active, "paper": prepare_paper}


def clip(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor | None:
    """Multiply the gradients by max_norm / max(norm, max_norm) and return their norm; None does nothing at all."""
    if max_norm is None:
        return None
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = whole(torch.nn.utils.get_total_norm(gradients))
    if max_norm != float("inf"):
        coefficient = max_norm / norm.clamp(min=max_norm)
        for gradient in gradients:
            local(gradient).mul_(coefficient.to(gradient.device))
    return norm


@torch.no_grad()
def all_finite(gradients: Iterable[Tensor]) -> bool:
    """Is every entry finite, on every rank? One value is read back from the device."""
    verdicts = [whole(gradient.isfinite().all()) for gradient in gradients]
    return not verdicts or bool(torch.stack(verdicts).all())
