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

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from sparseopt.topology.sharding import local, whole
from sparseopt.topology.storage import Dense, Packed, Storage, hold, multiply

Gradient = TypeVar("Gradient")

ROUNDING = 1e-4


class SparseParameter(NamedTuple):
    """One sparse parameter, with what its gradient is multiplied by: on a sharded parameter, this rank's part of it."""

    storage: Storage
    early: Tensor | None = None  # factors before the norm is taken, broadcast against the weights
    late: Tensor | None = None  # one number for the layer, after the clip
    measured: Callable[[], Tensor] | None = None  # where factors follow the weights, those of the neurons now
    early_by_neuron: Tensor | None = None
    mask: Tensor | None = None  # bytes; nothing learns outside. None where nothing is outside

    @property
    def grad(self) -> Tensor | None:
        grad = self.storage.parameter.grad
        return None if grad is None else local(grad)

    def dense_norm(self) -> Tensor | None:
        """The norm of the dense gradient of a packed layer, corrected; None where the gradient itself is the dense one."""
        if isinstance(self.storage, Dense) or self.grad is None:
            return None
        dense = must_be_there(self.storage.gradient(), self.storage.layer.name, "clip='paper'")
        scale = scale_since(self.storage, self.grad, dense)
        by_neuron = self.early_by_neuron if self.measured is None else self.measured()
        if by_neuron is not None:
            dense.mul_(self.storage.layer.broadcast(by_neuron))
        return torch.linalg.vector_norm(dense) * scale

    def all_factors(self) -> Tensor | None:
        """Early and late together."""
        factors = self.factors()
        return factors if factors is None or self.late is None else factors * self.late

    def factors(self) -> Tensor | None:
        return self.early if self.measured is None else self.storage.spread(self.measured())


def scale_since(storage: Packed, grad: Tensor, dense: Tensor) -> Tensor:
    """What the packed gradient has been multiplied by since the backward pass, as a gradient scaler or a clip does.

    Exactly 1 where that is all but for rounding, as of sums in another order.
    """
    before = dense.reshape(-1)[storage.index]
    largest = before.abs().argmax().view(1)  # a tensor of no dimensions would be read back as an index
    ratio = (grad.view(-1).index_select(0, largest) / before.index_select(0, largest)).view(())
    changed = ratio.isfinite() & ((ratio - 1).abs() > ROUNDING)
    return torch.where(changed, ratio, torch.ones_like(ratio))


def must_be_there(gradient: Gradient | None, name: str, reader: str) -> Gradient:
    """The dense gradient of a layer, or that by rows. Raises RuntimeError if it is None."""
    if gradient is None:
        raise RuntimeError(
            f"{reader} reads the gradient of inactive weights at this step, and no backward pass has left that of {name!r}: "
            "it must come after the step before, or after the optimizer's state was loaded, and go through the model"
        )
    return gradient


@torch.no_grad()
def prepare_active(
    sparse: Sequence[SparseParameter], parameters: Iterable[Tensor], max_norm: float | None
) -> Tensor | None:
    """Mask, correct, then clip by the norm of the result. Returns that norm, if a maximum is set."""
    _mask(sparse)
    _multiply(sparse, SparseParameter.factors)
    return clip(parameters, max_norm)


@torch.no_grad()
def prepare_paper(
    sparse: Sequence[SparseParameter], parameters: Iterable[Tensor], max_norm: float | None
) -> Tensor | None:
    """Scale the dense gradients by D, clip by their norm, then mask and multiply by 1 / sqrt(1 - s_avg)."""
    norms: dict[Tensor, Tensor] = {}
    for each in sparse if max_norm is not None else ():
        if (norm := each.dense_norm()) is not None:
            norms[each.storage.parameter] = norm
    _multiply(sparse, SparseParameter.factors)
    norm = clip(parameters, max_norm, norms)
    _mask(sparse)
    _multiply(sparse, lambda each: each.late)
    return norm


def _mask(sparse: Iterable[SparseParameter]) -> None:
    """Hold gradients to their masks, where that was not done on arrival or users have changed them since."""
    hold(
        (grad, each.mask)
        for each in sparse
        if each.mask is not None and (grad := each.storage.parameter.grad) is not None
        if not each.storage.grads.holds(each.storage.parameter)
    )


def _multiply(sparse: Iterable[SparseParameter], factors: Callable[[SparseParameter], Tensor | None]) -> None:
    """Multiply gradients by their factors, all in one call."""
    pairs = [
        (grad, factor)
        for each in sparse
        if (grad := each.grad) is not None and (factor := factors(each)) is not None
    ]
    multiply([grad for grad, _ in pairs], [factor for _, factor in pairs])


def _entries(gradient: Tensor) -> Tensor:
    """What a norm is taken over: of `nn.Embedding(sparse=True)`, whose rows may come several times, the sum of each."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


PREPARE = {"active": prepare_active, "paper": prepare_paper}


def clip(
    parameters: Iterable[Tensor], max_norm: float | None, norms: Mapping[Tensor, Tensor] | None = None
) -> Tensor | None:
    """Multiply the gradients by max_norm / max(norm, max_norm) and return their norm; None does nothing at all.

    `norms` has those that are taken over something else than the gradient itself.
    """
    if max_norm is None:
        return None
    norms = norms or {}
    held = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
    gradients = [gradient for _, gradient in held]
    norm = whole(torch.nn.utils.get_total_norm([_entries(norms.get(*pair)) for pair in held]))
    if max_norm != float("inf"):
        coefficient = max_norm / norm.clamp(min=max_norm)
        for gradient in gradients:
            local(gradient).mul_(coefficient.to(gradient.device))
    return norm
