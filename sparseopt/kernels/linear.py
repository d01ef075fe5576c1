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
from sparseopt.kernels.packed import NOTHING, gather, scatter
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


class Lists:
    """Index lists of all layers of a chain, as the kernels take them."""

    def __init__(self, masks: list[Tensor], entries: list[ActiveEntries]) -> None:
        self.entries = entries
        forward = [pattern.linear_forward(mask) for mask in masks]
        backward = [pattern.linear_backward(mask) for mask in masks]
        self.forward = [each.start for each in forward], [each.offset for each in forward]
        self.backward = (
            [each.start for each in backward],
            [each.offset for each in backward],
            [each.order for each in backward],
        )


class SparseChain(nn.Module):
    """Runs a chain on the sparse kernels. Its parameters are the model's own and are not registered here."""

    def __init__(self, chain: Chain, topology: Topology) -> None:
        super().__init__()
        self.chain, self.topology = chain, topology
        self.memory = Buffers(operators().lanes())
        self._lists: Lists | None = None
        self._built_for: int | None = None

    def weights(self) -> list[tuple[str, Tensor]]:
        return [(layer.weight, layer.module.weight) for layer in self.chain]

    def lists(self) -> Lists:
        """Lists of every layer, for the masks in force."""
        if self._lists is None or self._built_for != self.topology.version:
            masks = [self._mask(name, weight) for name, weight in self.weights()]
            entries = [
                self.topology.active_entries(name) if name in self.topology.masks else ActiveEntries(mask)
                for (name, _), mask in zip(self.weights(), masks, strict=True)
            ]
            self._lists, self._built_for = Lists(masks, entries), self.topology.version
        return self._lists

    def _mask(self, name: str, weight: Tensor) -> Tensor:
        return self.topology.masks.get(name, torch.ones_like(weight, dtype=torch.bool))

    def values(self, weight: Tensor, entries: ActiveEntries) -> Tensor:
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
    """One pass through a chain, and back. `tiles` are the input and the outputs of all layers."""

    def __init__(self, chain: SparseChain) -> None:
        self.tiles: list[Tensor] = []
        self.lists = chain.lists()
        self.weights = [layer.module.weight for layer in chain.chain]
        self.biases = [layer.module.bias for layer in chain.chain]
        self.relu = [int(layer.relu) for layer in chain.chain]
        self.values = [
            chain.values(weight, entries)
            for weight, entries in zip(self.weights, self.lists.entries, strict=True)
        ]
        self.versions = self._versions()
        self.active_grads = chain.topology.active_grads
        self.memory = chain.memory

    def forward(self, x: Tensor) -> Tensor:
        blocks = -(-len(x) // self.memory.lanes)
        features = (x.shape[1], *(weight.shape[0] for weight in self.weights))
        self.tiles = [self.memory.take(Shape(blocks, 1, each, 1)) for each in features]
        bias = [NOTHING if each is None else each.detach() for each in self.biases]
        y = floats(len(x), features[-1])
        x = x.detach().contiguous()
        operators().chain_forward(x, self.values, *self.lists.forward, self.relu, bias, self.tiles, y)
        return y

    def __del__(self) -> None:
        for tiles in self.tiles:
            self.memory.give(Shape(tiles.shape[0], 1, tiles.shape[2], 1), tiles)

    def _versions(self) -> list[int]:
        """How often each layer's values were changed in place; values for inference are not."""
        return [0 if each.is_inference() else each._version for each in self.values]

    def backward(self, gradient: Tensor, input_wanted: bool) -> list[Tensor | None]:
        """Gradients of the input and of every layer's weight and bias."""
        if self.versions != self._versions():
            raise RuntimeError(
                "the optimizer has moved the weights since the forward pass whose gradient is asked for: "
                "call backward before step"
            )
        of_input = floats(len(gradient), self.weights[0].shape[1]) if input_wanted else None
        of_weights = [torch.empty_like(each) for each in self.values]
        of_biases = [None if each is None else floats(*each.shape) for each in self.biases]
        operators().chain_backward(
            *(gradient.contiguous(), self.values, *self.lists.backward, self.relu, self.tiles, of_input),
            *(of_weights, [NOTHING if each is None else each for each in of_biases]),
        )
        found = [of_input]
        for weight, entries, values, bias in zip(
            self.weights, self.lists.entries, of_weights, of_biases, strict=True
        ):
            found += [self._weight_gradient(weight, entries, values), bias]
        return found

    def _weight_gradient(self, weight: Tensor, entries: ActiveEntries, values: Tensor) -> Tensor:
        if weight in self.active_grads:
            return ActiveTensor(values, entries, weight.shape)
        return scatter(values, entries.position, weight)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chain: SparseChain, x: Tensor, *parameters: Tensor | None) -> Tensor:
        ctx.run = ChainRun(chain)
        return ctx.run.forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, *ctx.run.backward(gradient, ctx.needs_input_grad[1])
