"""Whose output goes into BatchNorm? There a neuron's gradient grows as its fan-in falls, and there alone the correction is due.

Nothing is run for it. Most networks declare a BatchNorm right after the layer it follows (`conv1`, `bn1`, or one after the
other in a Sequential), with as many features as the layer has neurons. If that leaves a BatchNorm of the model unexplained, a
copy of the model without its weights is traced by torch.fx, and the layers before each BatchNorm are read off the graph, with
nothing but dropout, identity and changes of shape in between. Where the trace fails too, as with control flow that depends on
values, what the declarations say stands.
"""

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparseopt.topology.layers import Layer

PASSES_ON = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Flatten, nn.Unflatten)
RESHAPES = {
    *("flatten", "reshape", "view", "contiguous", "squeeze", "unsqueeze", "permute", "transpose", "dropout")
}


def batch_normed(model: nn.Module, layers: Mapping[str, Layer]) -> frozenset[str]:
    """Names of the layers whose output goes into a BatchNorm."""
    norms = {name for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    if not norms:
        return frozenset()
    by_module = {_module_of(name): name for name in layers}
    declared = {norm: before for before, norm in _declared(model, by_module, layers)}
    if set(declared) != norms:
        try:
            return frozenset(_traced(model, by_module) | set(declared.values()))
        except Exception:  # a model may do anything in forward, which fx need not be able to follow
            pass
    return frozenset(declared.values())


def _module_of(name: str) -> str:
    """The module that a weight belongs to, also where a parametrization computes it."""
    return (
        name.split(".parametrizations.")[0] if ".parametrizations." in f".{name}" else name.rpartition(".")[0]
    )


def _declared(
    model: nn.Module, by_module: Mapping[str, str], layers: Mapping[str, Layer]
) -> Iterator[tuple[str, str]]:
    """(weight, BatchNorm) where the one is declared right before the other and they fit."""
    for prefix, parent in model.named_modules():
        before: str | None = None
        for name, child in parent.named_children():
            path = f"{prefix}.{name}" if prefix else name
            if isinstance(child, _BatchNorm):
                weight = by_module.get(before) if before is not None else None
                if weight is not None and layers[weight].neurons == child.num_features:
                    yield weight, path
            if not isinstance(child, PASSES_ON):
                before = path


def _traced(model: nn.Module, by_module: Mapping[str, str]) -> set[str]:
    memo = {id(tensor): tensor.detach().to("meta") for tensor in model.buffers()}
    memo |= {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in model.parameters()}
    skeleton = copy.deepcopy(model, memo)
    graph = fx.Tracer().trace(skeleton)
    modules = dict(skeleton.named_modules())
    return {
        by_module[str(node.target)]
        for node in graph.nodes
        if node.op == "call_module" and str(node.target) in by_module and _reaches_norm(node, modules)
    }


def _reaches_norm(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    for user in node.users:
        if user.op == "call_module":
            module = modules[str(user.target)]
            through = isinstance(module, PASSES_ON) and _reaches_norm(user, modules)
            if through or isinstance(module, _BatchNorm):
                return True
        else:
            name = user.target if user.op == "call_method" else getattr(user.target, "__name__", "")
            through = name in RESHAPES and _reaches_norm(user, modules)
            if through or user.target is torch.nn.functional.batch_norm:
                return True
    return False
