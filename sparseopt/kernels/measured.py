"""`accelerate_where_faster`: measure every group of layers on a real batch, dense and sparse, and keep what is faster."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node

from sparseopt.kernels.accelerated import SparsePiece, Unsupported, install, restore, trace, training_pieces
from sparseopt.kernels.build import BuildError, operators
from sparseopt.kernels.rewrite import Piece, extract
from sparseopt.topology import Topology

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=nn.Module)

REPEATS = 3


@dataclass(frozen=True)
class Choice:
    """What was measured for one group of layers, in milliseconds for forward and backward."""

    layers: tuple[str, ...]
    dense: float
    sparse: float

    @property
    def faster(self) -> bool:
        return self.sparse < self.dense

    def __str__(self) -> str:
        names = self.layers[0] if len(self.layers) == 1 else f"{self.layers[0]} to {self.layers[-1]}"
        chosen = "sparse" if self.faster else "dense"
        return f"{names}: {chosen}, {self.dense:.1f} ms dense, {self.sparse:.1f} ms sparse"


def accelerate_where_faster(model: Model, topology: Topology, *example: Any) -> Model:
    """Like `accelerate`, but every group of layers is first timed on an example batch, and stays dense where that is faster.

    The log says what was chosen and why. The model's parameters, buffers and gradients are as before.
    """
    restore(model)
    try:
        operators()
        choices = measure(model, topology, *example)
    except (BuildError, Unsupported) as reason:
        logger.warning("not accelerated: %s", reason)
        return model
    for choice in choices:
        logger.info("%s", choice)
    faster = {choice.layers for choice in choices if choice.faster}
    return install(model, topology, lambda piece: layers_of(piece) in faster)


def measure(model: nn.Module, topology: Topology, *example: Any) -> list[Choice]:
    """Time every piece that the kernels can run, on the values it gets when the model is given the example."""
    traced = trace(model)
    pieces = training_pieces(model, traced, topology)
    with untouched(model):
        seen = Recorder(traced, {node for piece in pieces.values() for node in piece.inputs})
        with torch.no_grad():
            seen.run(*example)
        return [compare(traced, sparse, piece, seen.values) for sparse, piece in pieces.items()]


def compare(
    traced: GraphModule, sparse: SparsePiece, piece: Piece[Any], values: dict[Node, Tensor]
) -> Choice:
    dense = extract(traced, piece)
    inputs = [values[node].detach().requires_grad_(node.op != "placeholder") for node in piece.inputs]
    times = {dense: [], sparse: []}
    for _ in range(1 + REPEATS):
        for module, measured in times.items():
            measured.append(milliseconds(module, inputs))
    return Choice(layers_of(sparse), min(times[dense][1:]), min(times[sparse][1:]))


def milliseconds(module: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor]) -> float:
    start = time.perf_counter()
    outputs = module(*inputs)
    torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
    return (time.perf_counter() - start) * 1e3


def layers_of(piece: SparsePiece) -> tuple[str, ...]:
    return tuple(name.removesuffix(".weight") for name, _ in piece.weights())


class Recorder(Interpreter):
    """Runs a trace and keeps the values of some nodes."""

    def __init__(self, traced: GraphModule, wanted: set[Node]) -> None:
        super().__init__(traced)
        self.wanted = wanted
        self.values: dict[Node, Tensor] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n in self.wanted:
            self.values[n] = value.clone()  # what follows may write into it
        return value


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put back buffers, gradients and the random state afterwards."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    for parameter in gradients:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
