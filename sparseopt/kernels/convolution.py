"""One convolution of a region: its shape rules, its index lists, and its batch norm's numbers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparseopt.kernels import pattern
from sparseopt.kernels.graph import Conv
from sparseopt.kernels.memory import doubles, floats, zeros
from sparseopt.kernels.pattern import Pattern


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a convolution, and what its backward pass reads of the output's gradient."""

    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def output(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def reach(self) -> int:
        """Output position h reads input positions below h * stride + reach."""
        return self.kernel - self.padding

    def shifts(self) -> list[tuple[int, int]]:
        """For every kernel position: the parity of the inputs it reaches, and where their output is, from their own index."""
        parities = [(k - self.padding) % self.stride for k in range(self.kernel)]
        return [(p, (p + self.padding - k) // self.stride) for k, p in enumerate(parities)]

    @property
    def backward_reach(self) -> int:
        return max(shift for _, shift in self.shifts()) + 1

    @property
    def backward_border(self) -> int:
        """How far beyond the output the backward pass reads."""
        before = max(-shift for _, shift in self.shifts())
        after = max((self.size - 1 - parity) // self.stride + shift for parity, shift in self.shifts())
        return max(before, after - (self.output - 1), 0)


def axes(module: nn.Conv2d, height: int, width: int) -> tuple[Axis, Axis]:
    assert not isinstance(module.padding, str)
    sizes = zip((height, width), module.kernel_size, module.stride, module.padding, strict=True)
    rows, columns = (Axis(*each) for each in sizes)
    return rows, columns


@dataclass(frozen=True)
class Lists:
    """Index lists of one convolution for one image size."""

    position: Tensor
    forward: Pattern
    backward: Pattern
    reach: int
    backward_reach: int
    backward_border: int


def build_lists(conv: Conv, mask: Tensor, height: int, width: int, border: int, lanes: int) -> Lists:
    """`border` is that of the convolution's input."""
    module = conv.module
    rows, columns = axes(module, height, width)
    padding = (rows.padding, columns.padding)
    backward_border = max(rows.backward_border, columns.backward_border)
    read = pattern.geometry(module.in_channels, width, border, lanes)
    written = pattern.geometry(module.out_channels, columns.output, backward_border, lanes)
    return Lists(
        position=pattern.positions(mask),
        forward=pattern.conv_forward(mask, padding, read),
        backward=pattern.conv_backward(mask, padding, rows.stride, written),
        reach=rows.reach,
        backward_reach=rows.backward_reach,
        backward_border=backward_border,
    )


class Norm:
    """The batch norm behind a convolution during one run: `affine` for the way there, `backward` for the way back.

    Without a batch norm the affine map is the convolution's own bias, or nothing.
    """

    def __init__(self, conv: Conv, ops: Any, count: int) -> None:
        self.conv, self.module, self.ops, self.count = conv, conv.norm, ops, count
        self.shift = zeros(conv.channels)
        self.affine = floats(3, conv.channels)
        self.moments = doubles(2, conv.channels)
        module = self.module
        self.uses_batch = module is not None and (module.training or module.running_mean is None)
        self.sums = doubles(2, conv.channels) if self.uses_batch else None

    def prepare(self) -> None:
        """Fill `affine`; with batch statistics, after the convolution has gathered its sums."""
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
                f"the batch norm behind {self.conv.weight!r} has one sample of one position"
            )
        tracked = module.training and module.track_running_stats
        factor = 0.0
        if tracked and module.num_batches_tracked is not None:
            module.num_batches_tracked.add_(1)
            factor = 1 / float(module.num_batches_tracked) if module.momentum is None else module.momentum
        # The kernels leave out the convolution's bias, which batch norm cancels everywhere but in the running mean.
        bias = self.conv.module.bias
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
        bias = self.conv.module.bias
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

    def backward(self, sums: Tensor) -> tuple[Tensor, dict[Tensor, Tensor]]:
        """From the sums of g and g * (z - mean): the coefficients of dz, and the gradients of the parameters."""
        coefficients = zeros(4, self.conv.channels)
        bias, module = self.conv.module.bias, self.module
        if module is None:
            coefficients[0] = 1
            return coefficients, {} if bias is None else {bias: sums[0].float()}
        gradients = floats(2, self.conv.channels)
        self.ops.batch_norm_backward(sums, self.count, self.moments, module.weight, coefficients, gradients)
        found: dict[Tensor, Tensor] = {}
        if module.weight is not None:
            found = {module.weight: gradients[0], module.bias: gradients[1]}
        if not self.uses_batch:
            coefficients[1:3] = 0
        if bias is not None:
            found[bias] = torch.zeros_like(bias) if self.uses_batch else coefficients[0] * sums[0].float()
        return coefficients, found
