"""`accelerate_where_faster`: measure every group of layers on a real batch, dense and sparse, and keep what is faster.

A group is measured by itself, forward and backward, on the values it gets in the network; then the whole network with the groups
that won is measured against the dense one, because a group that is fast by itself may still cost others their place in the cache.
Dense and sparse take turns, and medians count. The network trains on as if nothing had happened: the choice alone may differ from
one measurement to the next, so whoever wants to repeat a run keeps it (`accelerated_layers`).
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparseopt.kernels.accelerated import accelerate, restore
from sparseopt.kernels.acceleration import Acceleration, Accept, forwards, layers_of
from sparseopt.kernels.match.tracing import Unsupported
from sparseopt.kernels.native.build import BuildError, operators
from sparseopt.topology import Topology

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=nn.Module)
Call = Callable[..., Any]

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
    with untouched(model), accelerated(model, topology, lambda _: True):
        pieces = [piece for forward in forwards(model) for piece in forward.guarded()]
        for piece in pieces:
            piece.inputs = ()
        model(*example)
        return [
            compare(layers_of(piece.sparse), piece.dense, piece.sparse, piece.inputs)
            for piece in pieces
            if piece.inputs and piece.on_kernels(piece.inputs)
        ]


def measure_network(model: nn.Module, topology: Topology, layers: Collection[str], *example: Any) -> Choice:
    """Time the model as it is, and with these layers on the kernels."""
    with untouched(model), accelerated(model, topology, lambda piece: set(layers_of(piece)) <= set(layers)):
        shared = next(forwards(model)).shared

        def dense(*inputs: Any) -> Any:
            shared.suspended = True
            try:
                return model(*inputs)
            finally:
                shared.suspended = False

        return compare(tuple(layers), dense, model, example)


@contextmanager
def accelerated(model: nn.Module, topology: Topology, accept: Accept) -> Iterator[None]:
    """Let the model run on the kernels for a while. Raises `Unsupported` if nothing of it can."""
    shared = Acceleration(model, topology, accept)
    shared.enter(model)
    try:
        if not any(forwards(model)):
            raise Unsupported(shared.why_nothing())
        yield
    finally:
        restore(model)


def compare(layers: tuple[str, ...], dense: Call, sparse: Call, inputs: Sequence[Any]) -> Choice:
    """Call both in turn; the first round, which compiles and allocates, does not count."""
    times: dict[Call, list[float]] = {dense: [], sparse: []}
    start = time.perf_counter()
    for repeat in range(1 + REPEATS):
        for call, measured in times.items():
            measured.append(milliseconds(call, inputs))
        if repeat >= 3 and time.perf_counter() - start > PATIENCE:
            break
    return Choice(layers, median(times[dense][1:]), median(times[sparse][1:]))


def milliseconds(call: Call, inputs: Sequence[Any]) -> float:
    start = time.perf_counter()
    found = call(*inputs)
    outputs = [each for each in tree_leaves(found) if isinstance(each, Tensor) and each.requires_grad]
    torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
    return (time.perf_counter() - start) * 1e3


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
            parameter.grad = gradient
