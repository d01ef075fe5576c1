"""`accelerate_where_faster`: measure every group of layers on a real batch, dense and sparse, and keep what is faster.

A group is measured by itself, forward and backward, on the values it gets in the network; then the whole network with the groups
that won is measured against the dense one, because a group that is fast by itself may still cost others their place in the cache.
Dense and sparse take turns, and medians count. The network trains on as if nothing had happened: the choice alone may differ from
one measurement to the next, so whoever wants to repeat a run keeps it (`accelerated_layers`).
"""

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

from sparseopt.kernels.accelerated import (
    SparsePiece,
    Unsupported,
    accelerate,
    build,
    layers_of,
    restore,
    trace,
    training_pieces,
)
from sparseopt.kernels.match.rewrite import Piece, extract
from sparseopt.kernels.native.build import BuildError, operators
from sparseopt.topology import Topology
from sparseopt.topology.active_parameter import release

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=nn.Module)

REPEATS = 7
PATIENCE = 10.0  # seconds for one comparison, after which three repeats are enough


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
        return f"{names}: {self.verdict()}"

    def verdict(self) -> str:
        chosen = "sparse" if self.faster else "dense"
        return f"{chosen}, {self.dense:.1f} ms dense, {self.sparse:.1f} ms sparse"


def accelerate_where_faster(model: Model, topology: Topology, *example: Any) -> Model:
    """Like `accelerate`, but every group of layers is first timed on an example batch, and stays dense where that is faster.

    The log says what was chosen and why. The model's parameters, buffers and gradients are as before.
    """
    return accelerate(model, topology, layers=faster_layers(model, topology, *example))


def faster_layers(model: nn.Module, topology: Topology, *example: Any) -> tuple[str, ...]:
    """The layers that are faster on the kernels, as the network trains on the example; the log says why."""
    restore(model)
    try:
        operators()
        choices = measure(model, topology, *example)
    except (BuildError, Unsupported) as reason:
        logger.warning("not accelerated: %s", reason)
        return ()
    for choice in choices:
        logger.info("%s", choice)
    layers = tuple(name for choice in choices if choice.faster for name in choice.layers)
    if not layers:
        return ()
    whole = measure_network(model, topology, layers, *example)
    logger.info("the whole network: %s", whole.verdict())
    return layers if whole.faster else ()


def measure(model: nn.Module, topology: Topology, *example: Any) -> list[Choice]:
    """Time every piece that the kernels can run, on the values it gets when the model is given the example."""
    traced = trace(model)
    pieces = training_pieces(model, traced, topology)
    with untouched(model):
        seen = Recorder(traced, {node for piece in pieces.values() for node in piece.inputs})
        with torch.no_grad():
            seen.run(*example)
        return [compare_piece(traced, sparse, piece, seen.values) for sparse, piece in pieces.items()]


def measure_network(model: nn.Module, topology: Topology, layers: Collection[str], *example: Any) -> Choice:
    """Time the model as it is, and with these layers on the kernels."""
    program = build(model, topology, lambda piece: set(layers_of(piece)) <= set(layers))
    with untouched(model):
        return compare(tuple(layers), model, program, example)


def compare_piece(
    traced: GraphModule, sparse: SparsePiece, piece: Piece[Any], values: dict[Node, Tensor]
) -> Choice:
    inputs = [values[node].detach().requires_grad_(node.op != "placeholder") for node in piece.inputs]
    return compare(layers_of(sparse), extract(traced, piece), sparse, inputs)


def compare(layers: tuple[str, ...], dense: nn.Module, sparse: nn.Module, inputs: Sequence[Any]) -> Choice:
    """Call both in turn; the first round, which compiles and allocates, does not count."""
    times: dict[nn.Module, list[float]] = {dense: [], sparse: []}
    start = time.perf_counter()
    for repeat in range(1 + REPEATS):
        for module, measured in times.items():
            measured.append(milliseconds(module, inputs))
        if repeat >= 3 and time.perf_counter() - start > PATIENCE:
            break
    return Choice(layers, median(times[dense][1:]), median(times[sparse][1:]))


def milliseconds(module: nn.Module, inputs: Sequence[Any]) -> float:
    start = time.perf_counter()
    found = module(*inputs)
    outputs = [each for each in tree_leaves(found) if isinstance(each, Tensor) and each.requires_grad]
    torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
    return (time.perf_counter() - start) * 1e3


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
    """Put back buffers, gradients and the random state afterwards; parameters are ordinary ones."""
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
            release(parameter)
            parameter.grad = gradient
