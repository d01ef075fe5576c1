"""The numbers of a batch norm, by which the kernels apply it (see `csrc/batch_norm.h`)."""

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sparseopt.kernels.native.memory import doubles, floats, zeros


class Normed(Protocol):
    """A layer with a batch norm behind it, or none. `weight` is the weight's name in the model."""

    @property
    def module(self) -> nn.Conv2d | nn.Linear: ...
    @property
    def weight(self) -> str | None: ...
    @property
    def norm(self) -> nn.BatchNorm1d | nn.BatchNorm2d | None: ...
    @property
    def channels(self) -> int: ...


class NormWeights:
    """The weights of batch norms as they are at a forward pass: backward reads them again."""

    def __init__(self, layers: Iterable[Normed]) -> None:
        norms = (layer.norm for layer in layers)
        self._weights = [each.weight for each in norms if each is not None and each.weight is not None]
        self._before = self._versions()

    def check(self) -> None:
        if self._before != self._versions():
            raise RuntimeError(
                "the weights of a batch norm were changed in place after the forward pass whose gradient is asked for: call "
                "backward before step"
            )

    def _versions(self) -> list[int]:
        return [0 if each.is_inference() else each._version for each in self._weights]


def by_parameter(norm: nn.Module, of_weight: Tensor, of_bias: Tensor) -> dict[Tensor, Tensor]:
    """Gradients of a batch norm by the parameters that it has, of which either may be missing."""
    pairs = ((norm.weight, of_weight), (norm.bias, of_bias))
    return {parameter: gradient for parameter, gradient in pairs if isinstance(parameter, Tensor)}


class Norm:
    """The batch norm behind a layer during one run: `affine` for the way there, `backward` for the way back.

    Without a batch norm the affine map is the layer's own bias, or nothing. `count`: values a channel.
    """

    def __init__(self, layer: Normed, ops: Any, count: int) -> None:
        self.layer, self.module, self.ops, self.count = layer, layer.norm, ops, count
        self.shift = zeros(layer.channels)
        self.affine = floats(3, layer.channels)
        self.moments = doubles(2, layer.channels)
        module = self.module
        self.uses_batch = module is not None and (module.training or module.running_mean is None)
        self.sums = doubles(2, layer.channels) if self.uses_batch else None

    def prepare(self) -> None:
        """Fill `affine`; with batch statistics, after the layer has gathered its sums."""
        if self.uses_batch:
            self._from_batch()
        else:
            self._from_running()

    def _from_batch(self) -> None:
        module = self.module
        assert module is not None
        if self.count == 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got {self.count}: "
                f"the batch norm behind {self.layer.weight!r} has one sample of one position"
            )
        tracked = module.training and module.track_running_stats
        factor = module.momentum or 0.0
        if tracked and module.num_batches_tracked is not None:
            module.num_batches_tracked.add_(1)
            factor = 1 / float(module.num_batches_tracked) if module.momentum is None else module.momentum
        # The kernels leave out the layer's bias, which batch norm cancels everywhere but in the running mean.
        bias = self.layer.module.bias
        self.ops.batch_norm_forward(
            self.sums,
            self.shift if bias is None else self.shift + bias.detach(),
            self.count,
            module.weight,
            module.bias,
            module.eps,
            module.running_mean if tracked else None,
            module.running_var if tracked else None,
            factor,
            self.moments,
            self.affine,
        )

    def _from_running(self) -> None:
        bias = self.layer.module.bias
        module = self.module
        middle, scale, offset = self.affine
        if module is None:
            middle.zero_()
            scale.fill_(1)
            offset.zero_() if bias is None else offset.copy_(bias.detach())
            return
        assert module.running_mean is not None
        assert module.running_var is not None
        mean = module.running_mean.double() - (0 if bias is None else bias.detach().double())
        inverse = (module.running_var.double() + module.eps).rsqrt()
        self.moments[0], self.moments[1] = mean, inverse
        gamma = inverse if module.weight is None else module.weight.detach() * inverse
        middle.copy_(mean)
        scale.copy_(gamma)
        offset.copy_((0 if module.bias is None else module.bias.detach()) + (middle - mean) * gamma)

    def backward(self, sums: Tensor, gradients: Tensor) -> tuple[Tensor, dict[Tensor, Tensor]]:
        """From the sums of g and g * (z - mean): the coefficients of dz, and the gradient of the layer's bias.

        `gradients` [2][channel] receives those of the batch norm's parameters, if it has any.
        """
        coefficients = zeros(4, self.layer.channels)
        bias, module = self.layer.module.bias, self.module
        if module is None:
            coefficients[0] = 1
            return coefficients, {} if bias is None else {bias: sums[0].float()}
        self.ops.batch_norm_backward(sums, self.count, self.moments, module.weight, coefficients, gradients)
        if not self.uses_batch:
            coefficients[1:3] = 0
        if bias is None:
            return coefficients, {}
        of_bias = torch.zeros_like(bias) if self.uses_batch else coefficients[0] * sums[0].float()
        return coefficients, {bias: of_bias}
