"""Dense operations that an engine's file may name: each is a function of torch, and a file can name nothing else.

Modules of `torch.nn` are written as the function they compute, with their parameters as tensors.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparseopt.kernels.frozen.pool import max_pool
from sparseopt.kernels.match.mutation import added


def attribute(x: Any, name: str) -> Any:
    """What a traced `x.shape` is."""
    if name not in ("shape", "ndim"):
        raise ValueError(f"engines read the attributes shape and ndim, not {name!r}")
    return getattr(x, name)


def _named(module: Any, prefix: str, names: str) -> dict[str, Callable[..., Any]]:
    return {f"{prefix}.{name}": getattr(module, name) for name in names.split()}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_named(
        operator,
        "operator",
        "add sub mul truediv floordiv mod neg pow getitem matmul eq ne lt le gt ge iadd imul",
    ),
    **_named(
        torch,
        "torch",
        "add sub mul div neg pow exp log sqrt rsqrt abs relu sigmoid tanh softmax mean sum amax amin cat stack flatten "
        "reshape transpose permute squeeze unsqueeze chunk split matmul bmm clamp maximum minimum where",
    ),
    **_named(
        F,
        "functional",
        "relu relu6 gelu silu elu leaky_relu hardswish hardsigmoid mish softplus softmax log_softmax sigmoid tanh linear conv1d "
        "conv2d batch_norm layer_norm group_norm normalize pad max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d "
        "interpolate embedding scaled_dot_product_attention",
    ),
    "sparseopt.max_pool": max_pool,
    "sparseopt.added": added,
    "attribute": attribute,
}
NAMES: dict[Any, str] = {function: name for name, function in reversed(FUNCTIONS.items())} | {
    getattr: "attribute"
}

METHODS = {
    *(
        "add",
        "add_",
        "sub",
        "mul",
        "mul_",
        "div",
        "pow",
        "exp",
        "sqrt",
        "rsqrt",
        "clamp",
        "matmul",
        "bmm",
        "float",
    ),
    *(
        "relu",
        "relu_",
        "sigmoid",
        "tanh",
        "softmax",
        "mean",
        "sum",
        "amax",
        "amin",
        "size",
        "dim",
        "contiguous",
    ),
    *(
        "flatten",
        "unflatten",
        "reshape",
        "view",
        "transpose",
        "permute",
        "squeeze",
        "unsqueeze",
        "expand",
        "t",
    ),
    *("chunk", "split"),
}

Form = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # function, what follows x, keywords


def as_function(module: nn.Module) -> Form | None:
    """What a module computes in evaluation mode, as a function of torch; None if that is not known."""
    match module:
        case nn.Linear():
            return F.linear, (module.weight, module.bias), {}
        case nn.Conv2d(padding_mode="zeros"):
            options = (module.stride, module.padding, module.dilation, module.groups)
            return F.conv2d, (module.weight, module.bias, *options), {}
        case nn.BatchNorm1d() | nn.BatchNorm2d() if module.running_mean is not None:
            numbers = (module.running_mean, module.running_var, module.weight, module.bias)
            return F.batch_norm, (*numbers, False, 0.0, module.eps), {}
        case nn.LayerNorm():
            return F.layer_norm, (module.normalized_shape, module.weight, module.bias, module.eps), {}
        case nn.GroupNorm():
            return F.group_norm, (module.num_groups, module.weight, module.bias, module.eps), {}
        case nn.Embedding(max_norm=None):
            return F.embedding, (), {"weight": module.weight}
        case nn.MaxPool2d(return_indices=False):
            options = (module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)
            return F.max_pool2d, options, {}
        case nn.AvgPool2d():
            options = (module.kernel_size, module.stride, module.padding, module.ceil_mode)
            return F.avg_pool2d, (*options, module.count_include_pad, module.divisor_override), {}
        case nn.AdaptiveAvgPool2d():
            return F.adaptive_avg_pool2d, (module.output_size,), {}
        case nn.Flatten():
            return torch.flatten, (module.start_dim, module.end_dim), {}
        case nn.Softmax():
            return torch.softmax, (module.dim,), {}
        case nn.GELU():
            return F.gelu, (), {"approximate": module.approximate}
        case nn.ELU():
            return F.elu, (module.alpha,), {}
        case nn.Softplus():
            return F.softplus, (module.beta, module.threshold), {}
        case nn.LeakyReLU():
            return F.leaky_relu, (module.negative_slope,), {}
    simple = {
        nn.ReLU: F.relu,
        nn.ReLU6: F.relu6,
        nn.SiLU: F.silu,
        nn.Hardswish: F.hardswish,
        nn.Hardsigmoid: F.hardsigmoid,
        nn.Mish: F.mish,
        nn.Sigmoid: torch.sigmoid,
        nn.Tanh: torch.tanh,
    }
    function = simple.get(type(module))
    return None if function is None else (function, (), {})


def passes_through(module: nn.Module) -> bool:
    return isinstance(module, nn.Identity | nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.AlphaDropout)


def run_method(x: Tensor, name: str, *args: Any, **kwargs: Any) -> Any:
    if name not in METHODS or not isinstance(x, Tensor):
        raise ValueError(f"engines know no method {name!r} of {type(x).__name__}")
    return getattr(x, name)(*args, **kwargs)
