"""In-place operations of a trace.

What comes after `x.relu_()` reads a value that no node of the trace stands for: x is what it was no longer. Where a ReLU or a sum
writes into a value that nobody else can see by another name, it is replaced by one that makes a new value, which later readers of
x read instead. All others stay what they are, where they are: see `effects` in `tracing.py`.
"""

import functools
import inspect
import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.nn import functional as F

OPERATORS = frozenset(
    getattr(operator, name)
    for name in (
        *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor"),
        *("ilshift", "irshift", "iconcat", "setitem", "delitem"),
    )
)
NEW_MODULES = (
    *(nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm),
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.Hardswish, nn.Softmax, nn.MaxPool2d),
    *(nn.AvgPool2d, nn.AdaptiveAvgPool2d),
)
NEW_FUNCTIONS = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.matmul),
        *(torch.add, torch.sub, torch.mul, torch.div, torch.matmul, torch.cat, torch.stack, torch.mean),
        *(torch.relu, torch.sigmoid, torch.tanh, F.relu, F.gelu, F.silu, F.leaky_relu, F.softmax, F.sigmoid),
        *(
            F.linear,
            F.conv2d,
            F.batch_norm,
            F.layer_norm,
            F.pad,
            F.avg_pool2d,
            F.max_pool2d,
            F.adaptive_avg_pool2d,
        ),
    }
)
NEW_METHODS = frozenset({"add", "sub", "mul", "div", "matmul", "relu", "sigmoid", "tanh", "mean", "clone"})


def added(x: Any, y: Any) -> Any:
    """`x += y` that leaves x alone."""
    return operator.iadd(x.clone() if isinstance(x, Tensor) else x, y)


def without_mutation(graph: Graph, modules: dict[str, nn.Module]) -> None:
    """Replace the in-place operations of the graph that can be replaced."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        written = mutated(node, module)
        function = _replacement(node, module)
        if written is None or function is None or not _is_private(written, place, place[node], modules):
            continue
        with graph.inserting_before(node):
            new = graph.call_function(function, node.args if function is added else (written,))
        place[new] = place[node]
        for reader in list(written.users):
            if place[reader] > place[node]:
                reader.replace_input_with(written, new)
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def mutated(node: Node, module: nn.Module | None) -> Node | None:
    """The value that a node writes into. What modules of the user's do cannot be told, and is not asked here."""
    first = node.args[0] if node.args else node.kwargs.get("input")
    writes = False
    if isinstance(node.kwargs.get("out"), Node):
        return node.kwargs["out"]  # pyright: ignore[reportReturnType]
    if node.op == "call_module":
        writes = bool(getattr(module, "inplace", False))
    elif node.op == "call_method":
        writes = says_in_place(str(node.target))
    elif node.op == "call_function":
        writes = (
            node.target in OPERATORS
            or says_in_place(getattr(node.target, "__name__", ""))
            or _asks_in_place(node)
        )
    if not writes:
        return None
    return first if isinstance(first, Node) else node


def says_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _asks_in_place(node: Node) -> bool:
    where = _place_of_inplace(node.target)
    return bool(
        node.kwargs.get("inplace") or (where is not None and len(node.args) > where and node.args[where])
    )


@functools.cache
def _place_of_inplace(function: Any) -> int | None:
    """Which argument of a function is its `inplace`."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    return names.index("inplace") if "inplace" in names else None


def _replacement(node: Node, module: nn.Module | None) -> Any:
    """The function that does the same and writes nothing; None if there is none that the kernels know."""
    plain = len(node.args) == 1 and not set(node.kwargs) - {"inplace"}
    if type(module) is nn.ReLU and plain:
        return F.relu
    if node.op == "call_module":
        return None
    if node.target in (F.relu_, torch.relu_, "relu_") and plain:
        return F.relu
    if node.target is F.relu and not set(node.kwargs) - {"inplace"}:
        return F.relu
    if node.target in (operator.iadd, "add_") and len(node.args) == 2 and not node.kwargs:
        return added
    return None


def _is_private(value: Node, place: dict[Node, int], now: int, modules: dict[str, nn.Module]) -> bool:
    """Is it a new value that no earlier reader can have made another name for?"""
    return makes_new(value, modules) and all(
        makes_new(reader, modules) for reader in value.users if place[reader] < now
    )


def makes_new(node: Node, modules: dict[str, nn.Module]) -> bool:
    """Is the result of a node memory of its own?"""
    if node.op == "call_module":
        module = modules[str(node.target)]
        known = type(module).__module__.startswith("torch.nn") and isinstance(module, NEW_MODULES)
        return known and mutated(node, module) is None
    if node.op == "call_function":
        return (node.target in NEW_FUNCTIONS and mutated(node, None) is None) or node.target is added
    return node.op == "call_method" and node.target in NEW_METHODS
