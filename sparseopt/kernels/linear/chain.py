"""Chains of sparse linear layers on activations in tiles of samples (see `csrc/linear.h`), as one autograd node."""

from typing import Any

import torch
from torch import Tensor, nn

from sparseopt.kernels.linear.run import ChainLists, ChainRun, parameters_of
from sparseopt.kernels.match.chains import Chain
from sparseopt.kernels.native.buffers import Buffers
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.once import differentiated_once
from sparseopt.kernels.native.packed import KernelWeight, listed_for
from sparseopt.topology import Topology
from sparseopt.topology.heap import give_back


class SparseChain(nn.Module):
    """Runs a chain on the sparse kernels. Its parameters are the model's own and are not registered here."""

    def __init__(self, chain: Chain, topology: Topology) -> None:
        super().__init__()
        self.chain, self.topology = chain, topology
        self.layer_weights = [KernelWeight(layer.module, layer.weight, topology) for layer in chain]
        self.memory = Buffers(operators().lanes())
        self._lists: ChainLists | None = None
        self._built_for: tuple[int, bool] | None = None

    def weights(self) -> list[tuple[str, Tensor]]:
        return [
            (layer.weight, weight.parameter)
            for layer, weight in zip(self.chain, self.layer_weights, strict=True)
        ]

    def lists(self) -> ChainLists:
        """Lists of every layer, for the masks in force."""
        if self._lists is None or self._built_for != listed_for(self.topology):
            self._lists = None  # before new ones are made: one set is held at a time
            self._lists, self._built_for = ChainLists(self.layer_weights), listed_for(self.topology)
            give_back()
        return self._lists

    def forget(self) -> None:
        """Give back the memory of runs that are over, and the lists."""
        self.memory, self._lists = Buffers(operators().lanes()), None

    def start(self) -> ChainRun:
        return ChainRun(self.chain, self.layer_weights, self.lists(), self.memory)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """`GuardedPiece` has seen that the input fits: the kernels trust the shapes."""
        parameters = parameters_of(self.chain, self.layer_weights)
        flat = x.float().reshape(-1, x.shape[-1])
        y = _ChainPass.apply(self, flat, *parameters)
        return (y.view(*x.shape[:-1], y.shape[-1]),)


class _ChainPass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chain: SparseChain, x: Tensor, *parameters: Tensor | None) -> Tensor:
        ctx.run = chain.start()
        return ctx.run.forward(x)

    @staticmethod
    @differentiated_once
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        run = ctx.run
        if run is None:
            raise RuntimeError(
                "this backward pass was made before, and its activations are gone: use retain_graph=True the first time"
            )
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # pyright: ignore[reportAttributeAccessIssue]
            ctx.run = None  # a loss that somebody keeps must not keep all activations
        return None, *run.backward(gradient, ctx.needs_input_grad[1])
