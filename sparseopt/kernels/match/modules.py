"""What can be said of a module without running it: whether its class says all it does."""

from collections import defaultdict

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.nn.utils.parametrize import ParametrizationList

from sparseopt.kernels.match.python import OVERRIDDEN, is_torchs
from sparseopt.topology.scatter import scatter_values, scatters

MADE_AND_SHOWN = {"__init__", "__repr__", "extra_repr", "reset_parameters"}


class Replacement:
    """A `forward` that is put in the place of the class's own and computes the same."""


def must_be_called(module: nn.Module) -> bool:
    """True if the class does not say all that a call does: hooks, a `forward` of the instance, a computed weight or bias."""
    layer = isinstance(module, nn.Linear | nn.Conv2d)
    made = (layer and weight_parameter(module) is None) or _computed(module)
    return made or has_own_forward(module) or has_hooks(module)


def _computed(module: nn.Module) -> bool:
    """Is there a parameter of a layer or a batch norm that a parametrization makes, other than from packed values?"""
    lists = module._modules.get("parametrizations")
    kinds = nn.Linear | nn.Conv2d | nn.BatchNorm1d | nn.BatchNorm2d
    return (
        lists is not None
        and isinstance(module, kinds)
        and set(lists._modules) != dict(scatters(module)).keys()
    )


def weight_parameter(module: nn.Module) -> nn.Parameter | None:
    """What a layer learns as its weight, dense or packed; None if that is made in another way."""
    packed = "weight" in dict(scatters(module))
    return scatter_values(module, "weight") if packed else module._parameters.get("weight")


def weight_shape(module: nn.Module) -> torch.Size:
    """The shape of a layer's weight, without making a packed one."""
    scatter = dict(scatters(module)).get("weight")
    weight = module._parameters["weight"] if scatter is None else scatter
    assert weight is not None
    return weight.shape


def zero_padding(module: nn.Conv2d) -> tuple[int, int] | None:
    """Rows and columns of zeros on either side of the image; None where there are more on one side, as "same" may mean."""
    rows, columns = module.kernel_size
    match module.padding:
        case "valid":
            return 0, 0
        case "same":
            return (
                (rows // 2, columns // 2) if rows % 2 and columns % 2 and module.dilation == (1, 1) else None
            )
        case padding:
            assert not isinstance(padding, str)
            return padding[0], padding[1]


def has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def has_global_hooks() -> bool:
    """Are there hooks that every module calls, as `torch.nn.modules.module.register_module_forward_hook` sets them?"""
    return bool(
        module_hooks._global_forward_hooks
        or module_hooks._global_forward_pre_hooks
        or module_hooks._global_backward_hooks
        or module_hooks._global_backward_pre_hooks
    )


def has_own_forward(module: nn.Module) -> bool:
    """True if this instance has a `forward` other than its class's, and it is none of ours."""
    forward = module.__dict__.get("forward")
    if forward is None or isinstance(forward, Replacement):
        return False
    return getattr(forward, "__func__", None) is not type(module).forward or forward.__self__ is not module


def tied_modules(model: nn.Module) -> set[nn.Module]:
    """Modules that share a parameter with another one, or have it twice: its gradient is a sum that autograd has to make."""
    holders: defaultdict[nn.Parameter, list[nn.Module]] = defaultdict(list)
    for module in model.modules():
        if isinstance(module, ParametrizationList):
            continue  # what is packed there belongs to the module that has it
        packed = [scatter_values(module, leaf) for leaf, _ in scatters(module)]
        for parameter in (*module._parameters.values(), *packed):
            if parameter is not None:
                holders[parameter].append(module)
    return {module for modules in holders.values() if len(modules) > 1 for module in modules}


def norm_activation(module: nn.Module) -> nn.Module | None:
    """What timm's BatchNormAct2d, batch norm and activation in one, does after the norm: a ReLU, or nothing.

    None where it does more, and of all other modules. It is known by its name, so that timm need not be imported.
    """
    kind = type(module)
    if kind.__qualname__ != "BatchNormAct2d" or kind.__module__.partition(".")[0] != "timm":
        return None
    drop, act = module._modules.get("drop"), module._modules.get("act")
    known = type(drop) is nn.Identity and type(act) in (nn.Identity, nn.ReLU)
    if drop is None or act is None or not known or must_be_called(drop) or must_be_called(act):
        return None
    return act if isinstance(module, nn.BatchNorm2d) else None


def is_leaf(module: nn.Module) -> bool:
    """Modules of torch, or that inherit all they do from one: a node of a trace. Sequences are looked into."""
    kind = type(module)
    if norm_activation(module) is not None:
        return True
    if kind.forward is nn.Sequential.forward or not getattr(kind.forward, "__module__", "").startswith(
        "torch."
    ):
        return False
    return kind.forward is not getattr(nn.Module, "forward", None)


def holds_modules(module: nn.Module) -> bool:
    """Are there modules in it, besides what makes its weights?"""
    return any(name != "parametrizations" for name, child in module._modules.items() if child is not None)


def is_known_leaf(module: nn.Module) -> bool:
    """A leaf that does what its class in torch says: whoever inherits from that class has changed none of its methods."""
    if norm_activation(module) is not None:
        return True
    own = {name for owner in type(module).__mro__ if not is_torchs(owner) for name in owner.__dict__}
    changed = {name for name in own - MADE_AND_SHOWN if name in OVERRIDDEN or _is_torchs_method(module, name)}
    return is_leaf(module) and not changed


def _is_torchs_method(module: nn.Module, name: str) -> bool:
    return any(is_torchs(owner) and callable(owner.__dict__.get(name)) for owner in type(module).__mro__)
