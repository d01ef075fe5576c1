"""Nodes of a trace that have to run where they stand, with nothing moved across them."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import Graph, Node

from sparseopt.kernels.match.modules import is_known_leaf, must_be_called
from sparseopt.kernels.match.mutation import mutated

RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal", "rrelu", "gumbel", "attention")


def is_random(node: Node, module: nn.Module | None) -> bool:
    """Does it draw numbers?"""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if module is not None:
        return isinstance(module, nn.RReLU | nn.modules.dropout._DropoutNd) or bool(
            getattr(module, "dropout", 0)
        )
    return any(word in name for word in RANDOM)


def effects(graph: Graph, modules: Mapping[str, nn.Module]) -> frozenset[Node]:
    """Nodes that have to run where they stand, and nothing across them: they write in place, draw numbers, or are unknown."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        unknown = (
            not is_known_leaf(module) or must_be_called(module)
            if module is not None
            else node.op == "call_function" and not _is_known_function(node.target)
        )
        if unknown or mutated(node, module) is not None or is_random(node, module):
            found.add(node)
    return frozenset(found)


def unused(graph: Graph, effects: frozenset[Node]) -> frozenset[Node]:
    """Nodes whose value nobody needs. They run all the same, for what they leave behind: batch norm's statistics."""
    needed: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in effects or node in needed:
            needed |= {node, *node.all_input_nodes}
    return frozenset(graph.nodes) - needed


def _is_known_function(function: Any) -> bool:
    home = getattr(function, "__module__", None) or ""
    return home.partition(".")[0] in ("torch", "_operator", "math", "builtins", "sparseopt") or type(
        function
    ).__name__ in (
        "builtin_function_or_method",
        "method_descriptor",
    )
