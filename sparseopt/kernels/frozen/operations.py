"""Dense operations that an engine's file may name: each is a function of torch, and a file can name nothing else.

Modules of `torch.nn` are written as the function they compute, with their parameters as tensors.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparseopt.kernels.frozen.pool import max_pool
from sparseopt.kernels.match.mutation import added
from sparseopt.kernels.match.rewrite import with_axes
from sparseopt.kernels.match.whole import parts

ATTRIBUTES = ("shape", "ndim", "dtype", "device", "T", "mT", "values", "indices")


def attribute(x: Any, name: str) -> Any:
    """What a traced `x.shape` is, or the `values` of a maximum."""
    if name not in ATTRIBUTES or not isinstance(x, Tensor | tuple):
        raise ValueError(f"engines read the attributes {', '.join(ATTRIBUTES)}, not {name!r}")
    return getattr(x, name)


def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """As `scaled_dot_product_attention`, which reads beyond the values where they are fewer than the keys."""
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"attention to {key.shape[-2]} keys with {value.shape[-2]} values")
    return F.scaled_dot_product_attention(query, key, value, *args, **kwargs)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """As torch's, which leaves memory as it was where it goes round by less than nothing."""
    if mode == "circular" and min(pad, default=0) < 0:
        raise ValueError(f"padding that goes round cannot be negative, got {tuple(pad)}")
    return F.pad(input, pad, mode, value)


def _words(names: str) -> list[str]:
    return names.split()


def _named(module: Any, prefix: str, names: str) -> dict[str, Callable[..., Any]]:
    return {f"{prefix}.{name}": getattr(module, name) for name in _words(names)}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_named(
        operator,
        "operator",
        "add sub mul truediv floordiv mod neg pow getitem matmul eq ne lt le gt ge and_ or_ xor invert iadd isub imul itruediv",
    ),
    **_named(
        torch,
        "torch",
        "add sub mul div neg pow exp log sqrt rsqrt abs relu sigmoid tanh softmax mean sum amax amin cat stack flatten "
        "reshape transpose permute squeeze unsqueeze chunk split matmul bmm clamp maximum minimum where concat unbind narrow "
        "select index_select gather masked_fill unflatten movedim moveaxis swapaxes swapdims roll flip tile repeat_interleave "
        "broadcast_to meshgrid einsum baddbmm addmm mm outer tril triu cumsum prod var std max min argmax argmin topk sort "
        "log_softmax logsumexp any all eq ne lt le gt ge logical_and logical_or logical_not log1p expm1 erf sin cos floor ceil "
        "round sign square reciprocal clamp_min clamp_max lerp _assert addcmul true_divide floor_divide remainder numel clone "
        "arange zeros ones full zeros_like ones_like full_like selu celu prelu rms_norm layer_norm group_norm pixel_shuffle "
        "pixel_unshuffle channel_shuffle cosine_similarity conv_transpose1d conv_transpose2d conv_transpose3d",
    ),
    **_named(
        F,
        "functional",
        "relu relu6 gelu silu elu leaky_relu hardswish hardsigmoid mish softplus softmax log_softmax sigmoid tanh linear conv1d "
        "conv2d batch_norm layer_norm group_norm normalize max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d "
        "interpolate embedding multi_head_attention_forward dropout dropout1d dropout2d "
        "dropout3d alpha_dropout conv3d conv_transpose1d conv_transpose2d conv_transpose3d instance_norm rms_norm "
        "local_response_norm max_pool1d max_pool3d avg_pool1d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool3d "
        "adaptive_max_pool1d adaptive_max_pool3d hardtanh glu selu celu prelu logsigmoid softsign softmin tanhshrink threshold "
        "pixel_shuffle pixel_unshuffle unfold one_hot cosine_similarity upsample",
    ),
    "functional.scaled_dot_product_attention": attention,
    "functional.pad": pad,
    "sparseopt.max_pool": max_pool,
    "sparseopt.added": added,
    "sparseopt.parts": parts,
    "sparseopt.with_axes": with_axes,
    "attribute": attribute,
}
NAMES: dict[Any, str] = {function: name for name, function in reversed(FUNCTIONS.items())} | {
    getattr: "attribute",
    F.scaled_dot_product_attention: "functional.scaled_dot_product_attention",
    F.pad: "functional.pad",
}

METHODS = frozenset(
    _words(
        "add add_ sub sub_ mul mul_ div div_ neg pow exp log sqrt rsqrt square abs sign floor ceil round sin cos erf "
        "reciprocal clamp clamp_ clamp_min clamp_max maximum minimum matmul bmm mm baddbmm masked_fill masked_fill_ "
        "where lerp addcmul float double half bfloat16 int long bool to type_as relu relu_ sigmoid sigmoid_ tanh "
        "tanh_ softmax log_softmax logsumexp mean sum prod var std norm cumsum amax amin max min argmax argmin topk "
        "sort any all eq ne lt le gt ge logical_and logical_or logical_not size dim numel contiguous clone detach "
        "flatten unflatten reshape reshape_as view view_as transpose permute movedim moveaxis swapaxes swapdims "
        "squeeze unsqueeze expand expand_as broadcast_to repeat tile repeat_interleave t chunk split unbind narrow "
        "select index_select gather unfold roll flip tril triu new_zeros new_ones new_full"
    )
)

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
    return isinstance(
        module, nn.Identity | nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d | nn.AlphaDropout
    )


def run_method(x: Tensor, name: str, *args: Any, **kwargs: Any) -> Any:
    if name not in METHODS or not isinstance(x, Tensor):
        raise ValueError(f"engines know no method {name!r} of {type(x).__name__}")
    return getattr(x, name)(*args, **kwargs)
