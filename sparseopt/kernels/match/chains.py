"""Finds chains of linear layers in a trace: linear layers, batch norm and activations that follow one another."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.nn import functional as F

from sparseopt.kernels.match.convs import RELU, Names
from sparseopt.kernels.match.effects import unused
from sparseopt.kernels.match.modules import must_be_called
from sparseopt.kernels.match.rewrite import Piece


class LinearActivation(IntEnum):
    """The activation behind a linear layer, see `csrc/frozen_chain.h`."""

    nothing = 0
    relu = 1
    gelu = 2

    def of(self, x: Tensor) -> Tensor:
        return (
            x.relu() if self is LinearActivation.relu else F.gelu(x) if self is LinearActivation.gelu else x
        )


@dataclass
class ChainLayer:
    """A linear layer with the batch norm and the activation behind it. `weight` is the weight's name in the model."""

    module: nn.Linear
    weight: str
    norm: nn.BatchNorm1d | None = None
    activation: LinearActivation = LinearActivation.nothing

    @property
    def relu(self) -> bool:
        return self.activation is LinearActivation.relu

    @property
    def channels(self) -> int:
        return self.module.out_features

    def norm_parameters(self) -> tuple[Tensor | None, ...]:
        return () if self.norm is None else (self.norm.weight, self.norm.bias)


Chain = list[ChainLayer]


class _Tail:
    """The last node of a chain, which grows by what reads that node alone."""

    def __init__(self, source: Node) -> None:
        self.chain: Chain = []
        self.nodes: list[Node] = []
        self.source = source

    def takes(self, module: nn.Module | None, activation: LinearActivation) -> bool:
        last = self.chain[-1]
        if isinstance(module, nn.Linear):
            return True
        if isinstance(module, nn.BatchNorm1d):
            return (
                last.norm is None and not last.activation and module.num_features == last.module.out_features
            )
        return activation is not LinearActivation.nothing and last.activation in (
            LinearActivation.nothing,
            LinearActivation.relu if activation is LinearActivation.relu else LinearActivation.nothing,
        )

    def add(self, node: Node, module: nn.Module | None, name: str, activation: LinearActivation) -> "_Tail":
        if isinstance(module, nn.Linear):
            self.chain.append(ChainLayer(module, name))
        elif isinstance(module, nn.BatchNorm1d):
            self.chain[-1].norm = module
        else:
            self.chain[-1].activation = activation
        self.nodes.append(node)
        return self


def match_chains(
    modules: Mapping[str, nn.Module],
    graph: Graph,
    tied: set[nn.Module],
    effects: frozenset[Node],
    names: Names,
    *,
    gelu: bool,
) -> list[Piece[Chain]]:
    """Linear layers that follow one another with nothing but batch norm and ReLU, or else GELU, between them."""
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    tails: dict[Node, _Tail] = {}
    ended: dict[Node, _Tail] = {}
    left_out = unused(graph, effects)
    for node in graph.nodes:
        if node in effects:
            ended |= tails
            tails.clear()
        if node in effects or node in left_out:
            continue
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        activation = _activation(module, node, gelu=gelu)
        source = node.args[0] if len(node.args) == 1 and not set(node.kwargs) - {"inplace"} else None
        if not isinstance(source, Node) or (
            module is not None and (module in tied or must_be_called(module))
        ):
            continue
        if isinstance(module, nn.Linear | nn.BatchNorm1d) and calls[node.target] > 1:
            continue
        name = "" if module is None else names(module, str(node.target))
        if source in tails and len(source.users) == 1 and tails[source].takes(module, activation):
            tails[node] = tails.pop(source).add(node, module, name, activation)
        elif isinstance(module, nn.Linear):
            tails[node] = _Tail(source).add(node, module, name, activation)
    return [
        Piece(tail.chain, frozenset(tail.nodes), [tail.source], {node: None})
        for node, tail in (ended | tails).items()
    ]


def _activation(module: nn.Module | None, node: Node, *, gelu: bool) -> LinearActivation:
    if isinstance(module, nn.ReLU) or (module is None and node.target in RELU):
        return LinearActivation.relu
    exact = isinstance(module, nn.GELU) and module.approximate == "none"
    return (
        LinearActivation.gelu
        if gelu and (exact or (module is None and node.target is F.gelu))
        else LinearActivation.nothing
    )
