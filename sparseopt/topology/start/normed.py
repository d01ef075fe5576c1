"""Whose output goes into BatchNorm? There a neuron's gradient grows as its fan-in falls, and there alone the correction is due.

What matters is whether BatchNorm takes the scale of a neuron away: whether multiplying its weights by a > 0 changes nothing. So
every path from the layer has to end in a BatchNorm, with nothing on it but what keeps channels apart and turns a y + c into
a f(y) + c': changes of shape, dropout, pooling, concatenation along the channels. ReLU and its kin turn a y into a f(y), which
is as good where the layer has no bias. A sum is not: what a neuron adds to a residual stream keeps its scale.

Paths are read off the graph that torch.fx makes of a copy of the model without its weights; nothing is run. Of a module that
it cannot follow, as with control flow that depends on values, the parts are followed each on its own, and of the layers that
lie directly in it those count that are declared right before a BatchNorm of as many features (`conv1`, `bn1`).
"""

import copy
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import pooling
from torch.nn.modules.batchnorm import _BatchNorm

from sparseopt.topology.layers import Layer

PASSES_ON = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Flatten, nn.Unflatten)
POOLS = (pooling._AvgPoolNd, pooling._MaxPoolNd, pooling._AdaptiveAvgPoolNd, pooling._AdaptiveMaxPoolNd)
HOMOGENEOUS = (nn.ReLU, nn.LeakyReLU, nn.PReLU)
PASSING = {
    *("flatten", "reshape", "view", "contiguous", "squeeze", "unsqueeze", "permute", "transpose", "dropout"),
    *(
        f"{adaptive}{kind}_pool{n}d"
        for adaptive in ("", "adaptive_")
        for kind in ("avg", "max")
        for n in (1, 2, 3)
    ),
}
HOMOGENEOUS_NAMES = {"relu", "relu_", "leaky_relu", "leaky_relu_", "prelu"}
CONCATENATES = {"cat", "concat", "concatenate"}
REGROUPS = {*CONCATENATES, "flatten", "reshape", "view"}
ASKS = {"size", "dim", "numel", "getattr"}  # about a tensor, and not for its values


def batch_normed(model: nn.Module, layers: Mapping[str, Layer]) -> frozenset[str]:
    """Names of the layers whose output goes into a BatchNorm."""
    if not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return frozenset()
    by_module = {_module_of(name): name for name in layers}
    try:
        skeleton = _skeleton(model)
    except Exception:  # a module may hold anything, which need not be possible to copy
        return frozenset(
            name for path, each in model.named_modules() for name in _declared(each, path, by_module, layers)
        )
    with torch.random.fork_rng(devices=[]):  # forward may draw
        return frozenset(_found(skeleton, "", by_module, layers))


def _module_of(name: str) -> str:
    """The module that a weight belongs to, also where a parametrization computes it."""
    return (
        name.split(".parametrizations.")[0] if ".parametrizations." in f".{name}" else name.rpartition(".")[0]
    )


def _skeleton(model: nn.Module) -> nn.Module:
    """A copy without weights, and without hooks, which are the user's own to call."""
    held = (each for module in model.modules() for each in vars(module).values() if isinstance(each, Tensor))
    memo: dict[int, Tensor] = {id(tensor): tensor.detach().to("meta") for tensor in (*model.buffers(), *held)}
    memo |= {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in model.parameters()}
    skeleton = copy.deepcopy(model, memo)
    for module in skeleton.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return skeleton.train()  # as it will be corrected


def _found(
    module: nn.Module, path: str, by_module: Mapping[str, str], layers: Mapping[str, Layer]
) -> Iterator[str]:
    """The layers within a module: by its graph, or else by its parts and its declarations."""
    if path in by_module or not any(isinstance(each, _BatchNorm) for each in module.modules()):
        return
    below = {each: name for name, each in module.named_modules(prefix=path)}
    weights = {each: by_module[name] for each, name in below.items() if name in by_module}
    try:
        graph = _Tracer(weights).trace(module)
    except Exception:  # a module may do anything in forward, which fx need not be able to follow
        yield from _declared(module, path, by_module, layers)
        for name, child in module.named_children():
            yield from _found(child, f"{path}.{name}" if path else name, by_module, layers)
        return
    into = {biased: _into_norm(graph, module, biased) for biased in (True, False)}
    calls: dict[nn.Module, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls.setdefault(module.get_submodule(str(node.target)), []).append(node)
    read = {
        id(_attribute(module, str(node.target)))
        for node in graph.nodes
        if node.op == "get_attr" and any(_called(user) not in ASKS for user in node.users)
    }
    for layer, name in weights.items():
        if any(id(each) in read for each in layer.parameters() if each.dim() > 1):
            continue  # a function uses the weight as well, who knows how
        nodes = [node for holder in _holders(layer, below) for node in calls.get(holder, ())]
        reached = into[getattr(layer, "bias", True) is not None]
        if (
            nodes
            and reached.issuperset(nodes)
            and all(_fits(each, module, layers[name].neurons) for each in nodes)
        ):
            yield name


def _attribute(root: nn.Module, path: str) -> object:
    """What a trace reads by this path, if it is there: constants of the trace are not."""
    found: object = root
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _holders(layer: nn.Module, modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules that have a parameter of the layer: itself, and those whose weight is tied to its."""
    own = {id(each) for each in layer.parameters()}
    return [each for each in modules if any(id(p) in own for p in each.parameters(recurse=each is layer))]


def _fits(node: fx.Node, root: nn.Module, neurons: int) -> bool:
    """Has every BatchNorm that a node leads into one feature a neuron? Where features are put together, that is not asked."""
    for user in node.users:
        module = root.get_submodule(str(user.target)) if user.op == "call_module" else None
        if isinstance(module, _BatchNorm):
            if module.num_features != neurons:
                return False
        elif (
            _called(user) in ASKS
            or _called(user) in REGROUPS
            or isinstance(module, nn.Flatten | nn.Unflatten)
        ):
            continue
        elif not _is_norm(user, root) and not _fits(user, root, neurons):
            return False
    return True


def _declared(
    parent: nn.Module, path: str, by_module: Mapping[str, str], layers: Mapping[str, Layer]
) -> Iterator[str]:
    """The layers that are declared right before a BatchNorm that fits."""
    before = ""
    for name, child in parent.named_children():
        weight = by_module.get(before)
        if isinstance(child, _BatchNorm) and weight and layers[weight].neurons == child.num_features:
            yield weight
        if not isinstance(child, PASSES_ON):
            before = f"{path}.{name}" if path else name


class _Tracer(fx.Tracer):
    """Calls the layers and every BatchNorm as they are, also those whose Python is somebody's own."""

    def __init__(self, weights: Mapping[nn.Module, str]) -> None:
        super().__init__()
        self.weights = weights

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = m in self.weights or isinstance(m, _BatchNorm)
        return known or super().is_leaf_module(m, module_qualified_name)


def _into_norm(graph: fx.Graph, root: nn.Module, biased: bool) -> set[fx.Node]:
    """The nodes from which every path leads into a BatchNorm that takes a neuron's scale away."""
    into: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        users = [user for user in node.users if _called(user) not in ASKS]
        if users and all(
            _is_norm(user, root) or (user in into and _passes(user, root, biased)) for user in users
        ):
            into.add(node)
    return into


def _is_norm(node: fx.Node, root: nn.Module) -> bool:
    if node.op == "call_module":
        return isinstance(root.get_submodule(str(node.target)), _BatchNorm)
    if node.target is not torch.nn.functional.batch_norm:
        return False
    training = node.args[5] if len(node.args) > 5 else node.kwargs.get("training", False)
    return training is not False  # with running statistics the scale stays


def _passes(node: fx.Node, root: nn.Module, biased: bool) -> bool:
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        return isinstance(module, (*PASSES_ON, *POOLS)) or (not biased and isinstance(module, HOMOGENEOUS))
    name = _called(node)
    if name in CONCATENATES:
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis"))
        return isinstance(dim, int) and dim == 1
    return name in PASSING or (not biased and name in HOMOGENEOUS_NAMES)


def _called(node: fx.Node) -> str:
    """The name of the function or method that a node calls."""
    if node.op == "call_method":
        return str(node.target)
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""
