"""Chains of sparse linear layers on activations in tiles of samples (see `csrc/linear.h`), as one autograd node."""

from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from sparseopt.kernels.linear.run import ChainRun, Lists
from sparseopt.kernels.match.chains import Chain
from sparseopt.kernels.native.buffers import Buffers
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.packed import gather
from sparseopt.topology import Topology
from sparseopt.topology.active import WEIGHT, ActiveEntries
from sparseopt.topology.active_parameter import ActiveParameter, adopt


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
                self.topology.active_entries(name)
                if mask is self.topology.masks.get(name)
                else ActiveEntries(mask)
                for (name, _), mask in zip(self.weights(), masks, strict=True)
            ]
            self._lists, self._built_for = Lists(masks, entries), self.topology.version
        return self._lists

    def _mask(self, name: str, weight: Tensor) -> Tensor:
        """All weights, in a layer that is not sparse, or another one than was sparse."""
        mask = self.topology.masks.get(name)
        if mask is None or mask.shape != weight.shape:
            return torch.ones_like(weight, dtype=torch.bool)
        return mask

    def values(self, weight: Tensor, entries: ActiveEntries) -> Tensor:
        """The active values of a weight: where the optimizer works on them as well, the very same ones."""
        if type(weight) is nn.Parameter and weight in self.topology.active_grads and weight.is_contiguous():
            entries.left.pop(WEIGHT, None)
            adopt(weight, self.topology.copies)
        if isinstance(weight, ActiveParameter):
            return weight.content.values(entries)
        return gather(weight, entries.position)

    def start(self) -> ChainRun:
        lists = self.lists()
        weights = (layer.module.weight for layer in self.chain)
        values = [self.values(*each) for each in zip(weights, lists.entries, strict=True)]
        return ChainRun(self.chain, lists, values, self.memory, self.topology.active_grads)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return _run(self, x)

    def run(self, x: Tensor) -> tuple[Tensor]:
        normed = any(layer.norm is not None for layer in self.chain)
        if normed and (x.dim() != 2 or not len(x)):
            return (
                self._dense(x),
            )  # batch norm takes the second axis for the channels, and leaves empty batches alone
        parameters = [each for layer in self.chain for each in layer.parameters()]
        flat = x.float().reshape(-1, x.shape[-1])
        self._check_shapes(flat)
        y = _Pass.apply(self, flat, *parameters)
        return (y.view(*x.shape[:-1], y.shape[-1]),)

    def _check_shapes(self, x: Tensor) -> None:
        """The kernels trust the shapes; a layer that does not fit its input, its mask or its bias is torch's to refuse."""
        features = x.shape[1]
        for layer, known in zip(self.chain, self.lists().shapes, strict=True):
            shape, bias = layer.module.weight.shape, layer.module.bias
            fits = shape[1] == features and (bias is None or bias.shape == shape[:1])
            if not fits or shape != known:
                raise RuntimeError(
                    f"shapes do not fit: {features} features into {layer.weight!r} of shape {tuple(shape)}, which had the "
                    f"shape {tuple(known)} when the model was accelerated"
                )
            features = shape[0]

    def _dense(self, x: Tensor) -> Tensor:
        for layer in self.chain:
            x = layer.dense(x)
        return x


_run: Any = _disable_dynamo(
    lambda piece, given: piece.run(given)
)  # torch.compiler.disable takes a second to import


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chain: SparseChain, x: Tensor, *parameters: Tensor | None) -> Tensor:
        ctx.run = chain.start()
        return ctx.run.forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, *ctx.run.backward(gradient, ctx.needs_input_grad[1])
