"""Chains of sparse linear layers on transposed activations (see `csrc/linear.h`), as one autograd node.

Activations stay transposed from the first layer of a chain to the last, ReLU included; the batch is padded to whole vectors
with samples of zeros, whose gradient is zero.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.fx import Graph, Node

from sparseopt.kernels import pattern
from sparseopt.kernels.build import operators
from sparseopt.kernels.match_convs import RELU
from sparseopt.kernels.pattern import Pattern
from sparseopt.kernels.rewrite import Piece, has_hooks
from sparseopt.topology import Topology


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


class SparseChain(nn.Module):
    """Runs a chain on the sparse kernels. Its parameters are the model's own and are not registered here."""

    def __init__(self, chain: Chain, topology: Topology) -> None:
        super().__init__()
        self.chain, self.topology = chain, topology
        self.ops, self.lanes = operators(), operators().lanes()
        self._patterns: list[tuple[Pattern, Pattern]] = []
        self._version: int | None = None

    def weights(self) -> list[tuple[str, nn.Parameter]]:
        return [(layer.weight, layer.module.weight) for layer in self.chain]

    def patterns(self) -> list[tuple[Pattern, Pattern]]:
        """Forward and backward lists of every layer, for the masks in force."""
        if self._version != self.topology.version:
            masks = [
                self.topology.masks.get(name, torch.ones_like(weight, dtype=torch.bool))
                for name, weight in self.weights()
            ]
            self._patterns = [(pattern.linear_forward(mask), pattern.linear_backward(mask)) for mask in masks]
            self._version = self.topology.version
        return self._patterns

    @torch.compiler.disable
    def forward(self, x: Tensor) -> tuple[Tensor]:
        parameters = [tensor for layer in self.chain for tensor in (layer.module.weight, layer.module.bias)]
        flat = x.float().reshape(-1, x.shape[-1])
        y = _Pass.apply(self, flat, *parameters)
        return (y.view(*x.shape[:-1], y.shape[-1]),)

    def transposed(self, x: Tensor) -> Tensor:
        samples = -(-len(x) // self.lanes) * self.lanes
        out = torch.empty(x.shape[1], samples)
        out[:, len(x) :] = 0
        out[:, : len(x)] = x.detach().t()
        return out

    def run(self, x: Tensor) -> list[Tensor]:
        """The transposed input and the output of every layer."""
        values = [self.transposed(x)]
        for layer, (use, _) in zip(self.chain, self.patterns(), strict=True):
            module = layer.module
            y = torch.empty(module.out_features, values[0].shape[1])
            bias = None if module.bias is None else module.bias.detach()
            self.ops.linear_forward(
                values[-1], module.weight.detach(), bias, use.start, use.offset, use.position, layer.relu, y
            )
            values.append(y)
        return values

    def run_back(self, values: Sequence[Tensor], gradient: Tensor, input_wanted: bool) -> list[Tensor | None]:
        """Gradients of the input and of every layer's weight and bias."""
        dy = self.transposed(gradient)
        if self.chain[-1].relu:
            dy *= values[-1] > 0
        found: list[Tensor | None] = []
        for index in reversed(range(len(self.chain))):
            module, (_, use) = self.chain[index].module, self.patterns()[index]
            x = values[index]
            dx = torch.empty_like(x) if index or input_wanted else None
            weight_gradient = torch.zeros_like(module.weight)
            behind_relu = index > 0 and self.chain[index - 1].relu
            self.ops.linear_backward(
                x,
                dy,
                module.weight.detach(),
                use.start,
                use.offset,
                use.position,
                behind_relu,
                dx,
                weight_gradient,
            )
            found = [weight_gradient, None if module.bias is None else dy.sum(1), *found]
            dy = dx
        return [None if dy is None else dy[:, : len(gradient)].t(), *found]


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chain: SparseChain, x: Tensor, *parameters: Tensor | None) -> Tensor:
        values = chain.run(x)
        ctx.chain, ctx.version = chain, chain.topology.version
        ctx.save_for_backward(*values[:-1])
        ctx.last = values[-1] if chain.chain[-1].relu else None
        return values[-1][:, : len(x)].t().contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values = [*ctx.saved_tensors, ctx.last]
        return None, *ctx.chain.run_back(values, gradient, ctx.needs_input_grad[1])
