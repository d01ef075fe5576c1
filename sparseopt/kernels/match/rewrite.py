"""Rewrites a traced network so that pieces of it run elsewhere; the rest stays as it is, in its order."""

import operator
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

Content = TypeVar("Content")


@dataclass(frozen=True)
class Piece(Generic[Content]):
    """A part of a trace: what it holds, its nodes, the nodes it reads, and the nodes whose values it gives, in order.

    The number beside an output is its channels if it is a mean that keeps two axes of size one, else None.
    """

    content: Content
    nodes: frozenset[Node]
    inputs: list[Node]
    outputs: Mapping[Node, int | None]


def must_be_called(module: nn.Module) -> bool:
    """Does its class not say what a module does? Somebody listens to it, or its weight is made anew at every call."""
    made = isinstance(module, nn.Linear | nn.Conv2d) and module._parameters.get("weight") is None
    return made or bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def tied_modules(model: nn.Module) -> set[nn.Module]:
    """Modules that share a parameter with another one, or have it twice: its gradient is a sum that autograd has to make."""
    holders: defaultdict[nn.Parameter, list[nn.Module]] = defaultdict(list)
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                holders[parameter].append(module)
    return {module for modules in holders.values() if len(modules) > 1 for module in modules}


def rewrite(traced: GraphModule, pieces: Mapping[Any, Piece[Any]]) -> None:
    """Replace each piece by a call of its module, which returns a tuple of the piece's outputs."""
    writer = _Writer(traced, pieces)
    replaced = frozenset().union(*(piece.nodes for piece in pieces.values()))
    for node in traced.graph.nodes:
        if node not in replaced:
            writer.write(node)
    traced.graph = writer.graph
    traced.recompile()


def extract(traced: GraphModule, piece: Piece[Any]) -> GraphModule:
    """The piece as it was traced, as a module of its own: a tuple of its outputs."""
    graph = Graph()
    written = {node: graph.placeholder(node.name) for node in piece.inputs}
    for node in traced.graph.nodes:
        if node in piece.nodes or node in piece.outputs:
            written[node] = graph.node_copy(node, written.__getitem__)
    graph.output(tuple(written[node] for node in piece.outputs))
    return GraphModule(traced, graph)


class _Writer:
    """Copies nodes as they are needed, and calls a piece's module when the first of its values is."""

    def __init__(self, traced: GraphModule, pieces: Mapping[Any, Piece[Any]]) -> None:
        self.traced = traced
        self.piece_of = {node: entry for entry in pieces.items() for node in entry[1].outputs}
        self.graph = Graph()
        self.written: dict[Node, Node] = {}

    def write(self, node: Node) -> Node:
        if node not in self.written:
            if node in self.piece_of:
                self._write_piece(*self.piece_of[node])
            else:
                self.written[node] = self.graph.node_copy(node, self.write)
        return self.written[node]

    def _write_piece(self, module: nn.Module, piece: Piece[Any]) -> None:
        inputs = tuple(self.write(node) for node in piece.inputs)
        name = f"sparse_piece_{len(self.written)}"
        self.traced.add_module(name, module)
        call = self.graph.call_module(name, inputs)
        for index, (node, channels) in enumerate(piece.outputs.items()):
            value = self.graph.call_function(operator.getitem, (call, index))
            if channels is not None:
                value = self.graph.call_function(Tensor.view, (value, -1, channels, 1, 1))
            self.written[node] = value
