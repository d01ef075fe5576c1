"""Linear layers that read nothing but the mean of a region, as classifiers do: inference takes them along with the region."""

from collections import Counter
from dataclasses import replace

import torch
from torch import nn
from torch.fx import Node

from sparseopt.kernels.match.graph import Region
from sparseopt.kernels.match.modules import must_be_called
from sparseopt.kernels.match.rewrite import Piece

FLATTEN = {torch.flatten, "flatten"}


def take_heads(
    model: nn.Module, piece: Piece[Region], taken: frozenset[Node]
) -> tuple[Piece[Region], dict[int, nn.Linear]]:
    """The piece with the linear layers behind its means, unless `taken`; and these layers, by the number of the output."""
    modules = dict(model.named_modules())
    outputs: dict[Node, int | None] = {}
    nodes, heads = set(piece.nodes), {}
    for number, (node, channels) in enumerate(piece.outputs.items()):
        path = _path_to_linear(node) if piece.content.outputs[number].pooled else []
        module = modules.get(str(path[-1].target)) if path else None
        last = (
            channels is None or len(path) > 2
        )  # a linear layer reads the last axis: of a mean that keeps two, not the channels
        if (
            not isinstance(module, nn.Linear)
            or not last
            or must_be_called(module)
            or _shared(path[-1])
            or path[-1] in taken
        ):
            outputs[node] = channels
            continue
        heads[number] = module
        outputs[path[-1]] = None
        nodes.update(path)
    return replace(piece, nodes=frozenset(nodes), outputs=outputs), heads


def _path_to_linear(mean: Node) -> list[Node]:
    """The mean, the node that flattens it if there is one, and the module that reads it; empty if others read it too."""
    path = [mean]
    while len(path[-1].users) == 1:
        (reader,) = path[-1].users
        path.append(reader)
        if reader.op == "call_module":
            return path
        if reader.target not in FLATTEN or reader.args[1:] != (1,) or reader.kwargs:
            break
    return []


def _shared(node: Node) -> bool:
    """Whether the node's module is called elsewhere too."""
    calls = Counter(each.target for each in node.graph.nodes if each.op == "call_module")
    return calls[node.target] > 1
