"""Rewrites a traced network so that pieces of it run elsewhere; the rest stays as it is, in its order."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from sparseopt.kernels.match.effects import effects

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


def rewrite(traced: GraphModule, pieces: Mapping[Any, Piece[Any]]) -> None:
    """Replace each piece by a call of its module, which returns a tuple of the piece's outputs.

    A piece is called when the first of its values is needed, and before any node with effects that comes after it.
    """
    writer = _CallWriter(traced, pieces)
    barriers = effects(traced.graph, dict(traced.named_modules()))
    place = {node: index for index, node in enumerate(traced.graph.nodes)}
    replaced = frozenset().union(*(piece.nodes for piece in pieces.values()))
    waiting: list[tuple[Any, Piece[Any]]] = []
    last = {max(entry[1].nodes, key=place.__getitem__): entry for entry in pieces.items()}
    for node in traced.graph.nodes:
        if node in barriers:
            for entry in waiting:
                writer.write(next(iter(entry[1].outputs)))
            waiting.clear()
        if node in last:
            waiting.append(last[node])
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


def with_axes(mean: Tensor) -> Tensor:
    """A mean over images with the two axes of size one that torch keeps; it has them already where torch has computed it."""
    return mean[..., None, None] if mean.dim() <= 2 else mean


class _CallWriter:
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
                value = self.graph.call_function(with_axes, (value,))
            self.written[node] = value
