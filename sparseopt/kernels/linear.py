"""Chains of sparse linear layers on activations in tiles of samples (see `csrc/linear.h`), as one autograd node.

Activations stay in tiles from the first layer of a chain to the last, ReLU included; the batch is padded to whole vectors with
samples of zeros, whose gradient is zero.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable
from torch.fx import Graph, Node

from sparseopt.kernels import pattern
from sparseopt.kernels.buffers import Buffers, Shape
from sparseopt.kernels.build import operators
from sparseopt.kernels.match_convs import RELU
from sparseopt.kernels.memory import floats
from sparseopt.kernels.packed import gather, scatter
from sparseopt.kernels.pattern import Pattern
from sparseopt.kernels.rewrite import Piece, has_hooks
from sparseopt.topology import Topology
from sparseopt.topology.active import WEIGHT, ActiveEntries
from sparseopt.topology.active_parameter import ActiveParameter, adopt
from sparseopt.topology.active_tensor import ActiveTensor


@dataclass
class Layer:
    """A linear layer and the ReLU behind it. `weight` is the weight's name in the model."""

    module: nn.Linear
    weight: str
    relu: bool = False


Chain = list[Layer]


def match_chains(model: nn.Module, graph: Graph) -> list[Piece[Chain]]:
    """Linear layers that follow one another with nothing but ReLU between them."""
    modules = dict(model.named_modules())
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    tails: dict[
        Node, tuple[Chain, list[Node]]
    ] = {}  # last node of a chain -> the chain, the node it reads and its own
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        free = module is not None and not has_hooks(module)
        follows = isinstance(source, Node) and source in tails and len(source.users) == 1
        if isinstance(module, nn.Linear) and free and calls[node.target] == 1 and isinstance(source, Node):
            chain, nodes = tails.pop(source) if follows else ([], [source])
            tails[node] = ([*chain, Layer(module, f"{node.target}.weight")], [*nodes, node])
        elif follows and (node.target in RELU or (isinstance(module, nn.ReLU) and free)):
            assert isinstance(source, Node)
            chain, nodes = tails.pop(source)
            chain[-1].relu = True
            tails[node] = (chain, [*nodes, node])
    return [
        Piece(chain, frozenset(nodes), [source], {tail: None})
        for tail, (chain, [source, *nodes]) in tails.items()
    ]


@dataclass(frozen=True)
class Lists:
    """Index lists of one layer."""

    entries: ActiveEntries
    forward: Pattern
    backward: Pattern


def build_lists(mask: Tensor, entries: ActiveEntries) -> Lists:
    return Lists(entries, pattern.linear_forward(mask), pattern.linear_backward(mask))


class SparseChain(nn.Module):
    """Runs a chain on the sparse kernels. Its parameters are the model's own and are not registered here."""

    def __init__(self, chain: Chain, topology: Topology) -> None:
        super().__init__()
        self.chain, self.topology = chain, topology
        self.memory = Buffers(operators().lanes())
        self._lists: list[Lists] = []
        self._built_for: int | None = None

    def weights(self) -> list[tuple[str, Tensor]]:
        return [(layer.weight, layer.module.weight) for layer in self.chain]

    def lists(self) -> list[Lists]:
        """Lists of every layer, for the masks in force."""
        if self._built_for != self.topology.version:
            self._lists = [self._lists_of(name, weight) for name, weight in self.weights()]
            self._built_for = self.topology.version
        return self._lists

    def _lists_of(self, name: str, weight: Tensor) -> Lists:
        if name in self.topology.masks:
            return build_lists(self.topology.masks[name], self.topology.active_entries(name))
        mask = torch.ones_like(weight, dtype=torch.bool)
        return build_lists(mask, ActiveEntries(mask))

    def values(self, weight: nn.Parameter, entries: ActiveEntries) -> Tensor:
        """The active values of a weight: where the optimizer works on them as well, the very same ones."""
        if type(weight) is nn.Parameter and weight in self.topology.active_grads and weight.is_contiguous():
            entries.left.pop(WEIGHT, None)
            adopt(weight, self.topology.copies)
        if isinstance(weight, ActiveParameter):
            return weight.content.values(entries)
        return gather(weight, entries.position)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return _run(self, x)

    def run(self, x: Tensor) -> tuple[Tensor]:
        parameters = [tensor for layer in self.chain for tensor in (layer.module.weight, layer.module.bias)]
        flat = x.float().reshape(-1, x.shape[-1])
        y = _Pass.apply(self, flat, *parameters)
        return (y.view(*x.shape[:-1], y.shape[-1]),)


_run: Any = _disable_dynamo(
    lambda piece, given: piece.run(given)
)  # torch.compiler.disable takes a second to import


class ChainRun:
    """One pass through a chain, and back. `values` are the input and the outputs of all layers, in tiles."""

    def __init__(self, chain: SparseChain) -> None:
        self.chain, self.lists = chain.chain, chain.lists()
        self.active_grads = chain.topology.active_grads
        self.ops, self.memory = operators(), chain.memory
        self.packed = [
            chain.values(layer.module.weight, lists.entries)
            for layer, lists in zip(self.chain, self.lists, strict=True)
        ]
        self.values: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.values = [self._tiled(x)]
        for layer, lists, packed in zip(self.chain, self.lists, self.packed, strict=True):
            bias = None if layer.module.bias is None else layer.module.bias.detach()
            use, source = lists.forward, self.values[-1]
            y = self._tiles(layer.module.out_features, len(x))
            self.ops.linear_forward(source, bias, packed, use.start, use.offset, layer.relu, y)
            self.values.append(y)
        return self._untiled(self.values[-1], len(x))

    def backward(self, gradient: Tensor, input_wanted: bool) -> list[Tensor | None]:
        """Gradients of the input and of every layer's weight and bias."""
        dy = self._tiled(gradient)
        if self.chain[-1].relu:
            dy *= self.values[-1] > 0
        found: list[Tensor | None] = []
        for index in reversed(range(len(self.chain))):
            inputs = self.chain[index].module.in_features
            dx = self._tiles(inputs, len(gradient)) if index or input_wanted else None
            found = [*self._layer_back(index, dy, dx), *found]
            if dx is not None:
                self._give(dy)
                dy = dx
        of_input = self._untiled(dy, len(gradient)) if input_wanted else None
        self._give(dy)
        return [of_input, *found]

    def _layer_back(self, index: int, dy: Tensor, dx: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Writes the gradient of a layer's input to dx; returns those of its weight and bias."""
        lists, packed = self.lists[index], self.packed[index]
        use, behind_relu = lists.backward, index > 0 and self.chain[index - 1].relu
        weight, bias = self.chain[index].module.weight, self.chain[index].module.bias
        of_weights = torch.empty_like(packed)
        of_bias = None if bias is None else floats(*bias.shape)
        self.ops.linear_backward(
            *(self.values[index], dy, packed, use.start, use.offset, use.order),
            *(behind_relu, dx, of_weights, of_bias),
        )
        if weight in self.active_grads:
            return ActiveTensor(of_weights, lists.entries, weight.shape), of_bias
        return scatter(of_weights, lists.entries.position, weight), of_bias

    def _tiles(self, features: int, samples: int) -> Tensor:
        return self.memory.take(Shape(-(-samples // self.memory.lanes), 1, features, 1))

    def _give(self, tiles: Tensor) -> None:
        self.memory.give(Shape(tiles.shape[0], 1, tiles.shape[2], 1), tiles)

    def __del__(self) -> None:
        for tiles in self.values:
            self._give(tiles)

    def _tiled(self, x: Tensor) -> Tensor:
        tiles = self._tiles(x.shape[1], len(x))
        self.ops.tile_samples(x.detach().contiguous(), tiles)
        return tiles

    def _untiled(self, tiles: Tensor, samples: int) -> Tensor:
        x = floats(samples, tiles.shape[2])
        self.ops.untile_samples(tiles, x)
        return x


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chain: SparseChain, x: Tensor, *parameters: Tensor | None) -> Tensor:
        ctx.run = ChainRun(chain)
        return ctx.run.forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, *ctx.run.backward(gradient, ctx.needs_input_grad[1])
