"""Modules of torch that an engine's file may name: each is its class in `torch.nn`, the options it is made with, and its tensors.

For what has several inputs or outputs, or ways of its own to run, as recurrent layers and attention; `operations` has what is
one function. A file can name no other module, every option is of the kind that its name says, and tensors have the shapes that
follow from the options: a module is made without memory, and takes the tensors of the file if they fit.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparseopt.kernels.frozen.saved_pieces import LARGEST, WIDEST, require
from sparseopt.kernels.match.modules import is_known_leaf, must_be_called
from sparseopt.kernels.match.python import is_torchs

_CONV = "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode"
_RECURRENT = "input_size hidden_size num_layers bias batch_first bidirectional"
_POOL = "kernel_size stride padding"
_LAYER = "d_model nhead dim_feedforward activation layer_norm_eps batch_first norm_first bias"

OPTIONS: dict[str, str] = {
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d"), _CONV),
    **dict.fromkeys(("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"), f"{_CONV} output_padding"),
    "LSTM": f"{_RECURRENT} proj_size",
    "GRU": _RECURRENT,
    "RNN": f"{_RECURRENT} nonlinearity",
    **dict.fromkeys(("LSTMCell", "GRUCell"), "input_size hidden_size bias"),
    "RNNCell": "input_size hidden_size bias nonlinearity",
    "MultiheadAttention": "embed_dim num_heads bias add_bias_kv add_zero_attn kdim vdim batch_first",
    **dict.fromkeys(("TransformerEncoderLayer", "TransformerDecoderLayer"), _LAYER),
    "TransformerEncoder": f"{_LAYER} num_layers final_norm mask_check use_nested_tensor",
    "TransformerDecoder": f"{_LAYER} num_layers final_norm",
    "Bilinear": "in1_features in2_features out_features bias",
    **dict.fromkeys(
        (f"{kind}Norm{axes}d" for kind in ("Batch", "Instance") for axes in (1, 2, 3)),
        "num_features eps momentum affine track_running_stats",
    ),
    "RMSNorm": "normalized_shape eps elementwise_affine",
    "LocalResponseNorm": "size alpha beta k",
    **dict.fromkeys(("MaxPool1d", "MaxPool2d", "MaxPool3d"), f"{_POOL} dilation return_indices ceil_mode"),
    "AvgPool1d": f"{_POOL} ceil_mode count_include_pad",
    "AvgPool3d": f"{_POOL} ceil_mode count_include_pad divisor_override",
    **dict.fromkeys(("AdaptiveAvgPool1d", "AdaptiveAvgPool3d"), "output_size"),
    **dict.fromkeys((f"AdaptiveMaxPool{axes}d" for axes in (1, 2, 3)), "output_size return_indices"),
    **dict.fromkeys((f"ConstantPad{axes}d" for axes in (1, 2, 3)), "padding value"),
    **dict.fromkeys(
        (f"{kind}Pad{axes}d" for kind in ("Reflection", "Replication", "Circular") for axes in (1, 2, 3)),
        "padding",
    ),
    "Upsample": "size scale_factor mode align_corners recompute_scale_factor",
    "PixelShuffle": "upscale_factor",
    "PixelUnshuffle": "downscale_factor",
    "ChannelShuffle": "groups",
    "Unflatten": "dim unflattened_size",
    "Unfold": f"{_POOL} dilation",
    "Fold": f"output_size {_POOL} dilation",
    **dict.fromkeys(("GLU", "LogSoftmax", "Softmin"), "dim"),
    **dict.fromkeys(("LogSigmoid", "Softsign", "Tanhshrink", "Softmax2d"), ""),
    "SELU": "inplace",
    "CELU": "alpha inplace",
    "PReLU": "num_parameters",
    "Hardtanh": "min_val max_val inplace",
    **dict.fromkeys(("Softshrink", "Hardshrink"), "lambd"),
    "Threshold": "threshold value inplace",
    "CosineSimilarity": "dim eps",
}


def _whole(least: int, below: int = LARGEST) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value < below


def _one_or_many(one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: all(map(one, value)) if isinstance(value, tuple) else one(value)


def _word(words: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in words.split()


def _flag(value: Any) -> bool:
    return type(value) is bool


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _if_given(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or kind(value)


def _names(names: str, kind: Callable[[Any], bool]) -> dict[str, Callable[[Any], bool]]:
    return dict.fromkeys(names.split(), kind)


KINDS: dict[str, Callable[[Any], bool]] = {
    **_names(
        "in_channels out_channels groups input_size hidden_size num_layers embed_dim num_heads kdim vdim d_model nhead "
        "dim_feedforward in1_features in2_features out_features num_features num_parameters upscale_factor downscale_factor",
        _whole(1),
    ),
    **_names("kernel_size stride dilation", _one_or_many(_whole(1, WIDEST))),
    **_names("normalized_shape", _one_or_many(_whole(1))),
    **_names("output_size size", _one_or_many(_if_given(_whole(1)))),
    **_names("unflattened_size", _one_or_many(_whole(-1))),
    "padding": lambda value: _word("same valid")(value) or _one_or_many(_whole(-WIDEST, WIDEST))(value),
    "output_padding": _one_or_many(_whole(0, WIDEST)),
    "proj_size": _whole(0),
    "dim": _if_given(_whole(-WIDEST, WIDEST)),
    "divisor_override": _if_given(_whole(1)),
    "scale_factor": _if_given(_one_or_many(_number)),
    **_names("eps momentum final_norm", _if_given(_number)),
    **_names("layer_norm_eps alpha beta k value min_val max_val lambd threshold", _number),
    **_names(
        "bias batch_first bidirectional add_bias_kv add_zero_attn norm_first mask_check use_nested_tensor affine "
        "track_running_stats elementwise_affine return_indices ceil_mode count_include_pad inplace",
        _flag,
    ),
    **_names("align_corners recompute_scale_factor", _if_given(_flag)),
    "mode": _word("nearest nearest-exact linear bilinear bicubic trilinear"),
    "padding_mode": _word("zeros reflect replicate circular"),
    "nonlinearity": _word("tanh relu"),
    "activation": _word("relu gelu"),
}

# What evaluation does not read, and what a class calls itself.
UNREAD = {"dropout", "p", "enable_nested_tensor", "name"}


def make_module(name: Any, options: Any, state: Mapping[str, Tensor]) -> nn.Module:
    """The module that a file describes, with the file's own tensors. Raises for what is none, before it takes memory."""
    require(name in OPTIONS, f"it has a module {name!r}")
    require(set(options) == set(OPTIONS[name].split()), f"a {name} has other options than {sorted(options)}")
    options = {key: tuple(each) if isinstance(each, list) else each for key, each in options.items()}
    for key, each in options.items():
        kind = _one_or_many(_whole(0, WIDEST)) if name.startswith("CircularPad") else KINDS[key]
        require(kind(each), f"a {name} cannot have {key}={each!r:.80}")
    require(options.get("num_layers", 0) <= len(state), f"a {name} of more layers than it has tensors")
    with torch.device("meta"):
        module = _MADE[name](**options) if name in _MADE else getattr(nn, name)(**options)
    for key, each in module.state_dict().items():
        dtype = torch.float32 if each.is_floating_point() else each.dtype
        require(key in state and state[key].dtype == dtype, f"the {key!r} of a {name} is not {dtype}")
    module.load_state_dict(dict(state), assign=True)
    return module.eval().requires_grad_(False)


def describe(module: nn.Module) -> tuple[str, dict[str, Any]] | None:
    """Name and options of a module that `make_module` makes again; None of one that does something else."""
    kinds = [each for each in type(module).__mro__ if is_torchs(each) and each.__name__ in OPTIONS]
    if not kinds:
        return None
    name = kinds[0].__name__
    try:
        special = _READ[name](module) if name in _READ else {}
        options = {
            key: special[key] if key in special else _option(module, key) for key in OPTIONS[name].split()
        }
        made = make_module(name, options, module.state_dict())
    except (ValueError, AttributeError, TypeError, RuntimeError):
        return None
    return (name, options) if _same(made, module) else None


def _option(module: nn.Module, name: str) -> Any:
    value = getattr(module, name)
    return value is not None if name == "bias" and type(value) is not bool else value


def _same(made: nn.Module, module: nn.Module) -> bool:
    ours, others = dict(made.named_modules()), dict(module.named_modules())
    return ours.keys() == others.keys() and all(_says_the_same(ours[name], others[name]) for name in ours)


def _says_the_same(made: nn.Module, module: nn.Module) -> bool:
    inherits = type(module) is type(made) or (isinstance(module, type(made)) and is_known_leaf(module))
    plain = {
        name: value
        for name, value in vars(made).items()
        if isinstance(value, bool | int | float | str | tuple | None) and name not in UNREAD
    }
    return (
        inherits
        and not must_be_called(module)
        and all(vars(module).get(name) == value for name, value in plain.items())
        and vars(module).get("activation")
        is vars(made).get("activation")  # a function, of each layer of a stack
    )


def _layer_options(layer: Any) -> dict[str, Any]:
    return {
        "d_model": layer.self_attn.embed_dim,
        "nhead": layer.self_attn.num_heads,
        "dim_feedforward": layer.linear1.out_features,
        "activation": {F.relu: "relu", F.gelu: "gelu"}.get(layer.activation),
        "layer_norm_eps": layer.norm1.eps,
        "batch_first": layer.self_attn.batch_first,
        "bias": layer.linear1.bias is not None,
        "norm_first": layer.norm_first,
    }


def _stack_options(stack: Any) -> dict[str, Any]:
    norm = stack.norm
    return {**_layer_options(stack.layers[0]), "final_norm": None if norm is None else norm.eps}


def _encoder(
    num_layers: int, final_norm: float | None, mask_check: bool, use_nested_tensor: bool, **layer: Any
) -> nn.Module:
    one = nn.TransformerEncoderLayer(**layer)
    norm = _final_norm(layer, final_norm)
    return nn.TransformerEncoder(one, num_layers, norm, use_nested_tensor, mask_check)


def _decoder(num_layers: int, final_norm: float | None, **layer: Any) -> nn.Module:
    return nn.TransformerDecoder(
        nn.TransformerDecoderLayer(**layer), num_layers, _final_norm(layer, final_norm)
    )


def _final_norm(layer: Mapping[str, Any], eps: float | None) -> nn.LayerNorm | None:
    return None if eps is None else nn.LayerNorm(layer["d_model"], eps)


# What is made of other options than it is called with, and where options are not attributes of the same name.
_MADE: dict[str, Callable[..., nn.Module]] = {"TransformerEncoder": _encoder, "TransformerDecoder": _decoder}
_READ: dict[str, Callable[[Any], dict[str, Any]]] = {
    "MultiheadAttention": lambda module: {
        "bias": module.in_proj_bias is not None,
        "add_bias_kv": module.bias_k is not None,
    },
    "TransformerEncoderLayer": _layer_options,
    "TransformerDecoderLayer": _layer_options,
    "TransformerEncoder": _stack_options,
    "TransformerDecoder": _stack_options,
}
