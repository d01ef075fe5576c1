"""Max pooling between regions, which would take a fifth of a ResNet-50's time in torch."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparseopt.kernels.match.modules import must_be_called
from sparseopt.kernels.native.build import operators

Pair = int | tuple[int, int]


def max_pool(
    x: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """As `torch.nn.functional.max_pool2d`, by the kernels where they know how."""
    kernel, pad = _pair(kernel_size), _pair(padding)
    step = kernel if stride is None else _pair(stride)
    plain = _pair(dilation) == (1, 1) and not ceil_mode and x.dim() == 4 and x.dtype == torch.float32
    fits = all(
        0 <= 2 * p <= k and 0 < k <= size + 2 * p and s > 0
        for k, p, s, size in zip(kernel, pad, step, x.shape[2:], strict=False)
    )
    if not plain or not fits or not x.is_cpu or not x.numel():
        return F.max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode)
    return operators().max_pool(x.contiguous(), kernel, step, pad)


def _pair(size: Pair) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class FrozenPool(nn.Module):
    """A `MaxPool2d` by the kernels."""

    def __init__(self, module: nn.MaxPool2d) -> None:
        super().__init__()
        self.options = (
            *(module.kernel_size, module.stride, module.padding, module.dilation),
            module.ceil_mode,
        )

    def forward(self, x: Tensor) -> Tensor:
        return max_pool(x, *self.options)


def replace_pools(model: nn.Module) -> None:
    """Let the model's own max poolings, those without listeners, run on the kernels."""
    for name, child in list(model.named_children()):
        if type(child) is nn.MaxPool2d and not child.return_indices and not must_be_called(child):
            setattr(model, name, FrozenPool(child))
        else:
            replace_pools(child)
