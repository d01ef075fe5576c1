"""Which parameters of which modules are weights, and along which axis their neurons lie.

torch's own layers, recurrent ones included, and Hugging Face's `Conv1D` are known; a module of one's own is made known by
`register_layer`. Where a parametrization computes the weight (`weight_norm`, `spectral_norm`), the tensor of the weight's
shape that it is computed from is the one to be masked.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WEIGHTED = (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
# Of attention; out_proj is a Linear.
ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")

_registered: dict[type[nn.Module], dict[str, bool]] = {}


class Weight(NamedTuple):
    """One weight of a module: the name of its parameter within it, and where its neurons are."""

    leaf: str
    parameter: nn.Parameter
    transposed: bool = False
    groups: int = 1
    depthwise: bool = False
    norm_dim: int | None = None
    beside: str | None = None


def register_layer(kind: type[nn.Module], leaf: str = "weight", neurons_dim: int = 0) -> None:
    """Let `sparsify` know that modules of this type have a weight: the parameter `leaf`, with its neurons along an axis.

    A neuron is an output unit. With `neurons_dim=0` its inputs are all other axes, as in `nn.Linear`; `neurons_dim=1` is for
    weights that are applied from the right, (inputs, outputs). Subclasses are known, too.

    Args:
        kind: the class of the module.
        leaf: name of its weight.
        neurons_dim: dimension of the weight that counts its neurons.

    >>> import torch
    >>> class Mixing(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.kernel = nn.Parameter(torch.randn(8, 4))
    >>> register_layer(Mixing, "kernel", neurons_dim=1)
    >>> from sparseopt.topology.start.sparsify import sparsify
    >>> sparsify(Mixing(), 0.5).fan_in("kernel").numel()
    4
    """
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise TypeError(f"kind must be a subclass of nn.Module, got {kind!r}")
    if neurons_dim not in (0, 1):
        raise ValueError(f"neurons_dim must be 0 or 1, got {neurons_dim!r}")
    _registered.setdefault(kind, {})[leaf] = neurons_dim == 1


def weights_of(module: nn.Module) -> Iterator[Weight]:
    """The weights that a module itself has, not those of its children."""
    for leaf, transposed in _leaves(module).items():
        name, parameter = _parameter(module, leaf)
        if parameter is None:
            continue
        groups = int(getattr(module, "groups", 1)) if isinstance(module, WEIGHTED) else 1
        depthwise = groups > 1 and groups == getattr(module, "in_channels", None)
        along, beside = groups if transposed else 1, _beside(module, leaf)
        yield Weight(name, parameter, transposed, along, depthwise, _norm_dim(module, leaf), beside)


def pruned_leaves(module: nn.Module) -> list[str]:
    """The weights that `torch.nn.utils.prune` holds a mask for."""
    return [leaf for leaf in _leaves(module) if f"{leaf}_orig" in module._parameters]


def _leaves(module: nn.Module) -> dict[str, bool]:
    """Name of each weight, and whether its neurons lie along axis 1."""
    found: dict[str, bool] = {}
    if isinstance(module, WEIGHTED):
        found["weight"] = isinstance(module, TRANSPOSED)
    elif isinstance(module, nn.MultiheadAttention):
        found |= dict.fromkeys(ATTENTION_WEIGHTS, False)
    elif isinstance(module, RECURRENT):
        names = {name.removesuffix("_orig") for name in (*module._parameters, *_parametrized(module))}
        found |= dict.fromkeys(sorted(name for name in names if name.startswith("weight_")), False)
    elif _is_hugging_face_conv1d(module):
        found["weight"] = True
    for kind, leaves in _registered.items():
        if isinstance(module, kind):
            _check_registered(module, leaves)
            found |= leaves
    return found


def _check_registered(module: nn.Module, leaves: Iterable[str]) -> None:
    there = {*module._parameters, *_parametrized(module)}
    for leaf in leaves:
        if not there & {leaf, f"{leaf}_v", f"{leaf}_orig"}:
            raise ValueError(
                f"register_layer was told that {type(module).__name__} has a weight {leaf!r}, and it has "
                f"{', '.join(sorted(there)) or 'none at all'}"
            )


def _parameter(module: nn.Module, leaf: str) -> tuple[str, nn.Parameter | None]:
    """The tensor to be masked: the weight itself, or what it is computed from."""
    if leaf in _parametrized(module):
        shape = getattr(module, leaf).shape
        for name, parameter in module.parametrizations[leaf].named_parameters(recurse=False):  # pyright: ignore
            if parameter.shape == shape:
                return f"parametrizations.{leaf}.{name}", parameter
        return leaf, None
    direction = module._parameters.get(f"{leaf}_v")  # the older weight_norm
    if leaf not in module._parameters and direction is not None:
        return f"{leaf}_v", direction
    return leaf, module._parameters.get(leaf)


def _beside(module: nn.Module, leaf: str) -> str | None:
    """In a recurrent layer the gates, its neurons, have inputs from below (weight_ih) and from the step before (weight_hh)."""
    if not isinstance(module, RECURRENT) or not leaf.startswith(("weight_ih", "weight_hh")):
        return None
    here, there = ("_ih", "_hh") if leaf.startswith("weight_ih") else ("_hh", "_ih")
    return _parameter(module, leaf.replace(here, there))[0]


def _norm_dim(module: nn.Module, leaf: str) -> int | None:
    """The dimension whose slices weight_norm, new or old, divides by their norms; -1: all by one; None: there is none."""
    computing = module.parametrizations[leaf] if leaf in _parametrized(module) else ()  # pyright: ignore
    new = [each for each in computing if type(each) is _WeightNorm]  # pyright: ignore
    old = [
        each
        for each in module._forward_pre_hooks.values()
        if isinstance(each, WeightNorm) and each.name == leaf
    ]
    return next((each.dim for each in (*new, *old)), None)


def _parametrized(module: nn.Module) -> list[str]:
    return list(module.parametrizations) if parametrize.is_parametrized(module) else []  # pyright: ignore


def _is_hugging_face_conv1d(module: nn.Module) -> bool:
    """GPT-2's linear layer, (inputs, outputs): known by its name and shape, so that transformers need not be imported."""
    weight = module._parameters.get("weight")
    return (
        type(module).__name__ == "Conv1D"
        and weight is not None
        and weight.dim() == 2
        and hasattr(module, "nf")
    )
