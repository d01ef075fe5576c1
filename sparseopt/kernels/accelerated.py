"""`accelerate`: the same model, the same parameters, on sparse kernels."""

import logging
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Tracer

from sparseopt.kernels.conv.region import SparseRegion
from sparseopt.kernels.linear.chain import SparseChain
from sparseopt.kernels.match.chains import Chain, match_chains
from sparseopt.kernels.match.convs import Matcher
from sparseopt.kernels.match.graph import Region
from sparseopt.kernels.match.rewrite import Piece, rewrite
from sparseopt.kernels.match.structure import Modes, Structure
from sparseopt.kernels.native.build import BuildError, operators
from sparseopt.kernels.native.packed import CompiledCopies
from sparseopt.topology import Topology
from sparseopt.topology.active_parameter import ActiveParameter, release

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=nn.Module)
SparsePiece = SparseRegion | SparseChain
Accept = Callable[[SparsePiece], bool]

BREAK_EVEN = 0.5  # sparsity of a piece below which dense kernels are as fast
DENSE_STEPS = 10  # steps in a row that need the dense gradient, after which the log says so


def accelerate(
    model: Model, topology: Topology, *, break_even: float = BREAK_EVEN, layers: Collection[str] | None = None
) -> Model:
    """Run the model's sparse layers on sparse CPU kernels, in training and in evaluation.

    The model is changed in place and returned: same class, parameters, buffers and `state_dict`; only its `forward` goes
    another way. Where the kernels cannot help (no compiler, parameters on a GPU, a model that cannot be traced) it is returned
    as it was, and the log says why. `restore` undoes it; copies of the model are ordinary dense ones.

    Layers that can run together stay together; a group whose share of zeros is below `break_even` stays dense. With `layers`,
    names such as `accelerated_layers` gives, exactly the groups of these layers run on the kernels.

    >>> import torch, sparseopt as so
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))
    >>> topology = so.sparsify(model, sparsity=0.95)
    >>> model = so.accelerate(model, topology)
    >>> model(torch.zeros(32, 784)).shape
    torch.Size([32, 10])
    """
    if layers is None:
        return install(model, topology, lambda piece: sparsity(piece, topology) >= break_even)
    if not layers:
        restore(model)
        return model
    return install(model, topology, lambda piece: set(layers_of(piece)) <= set(layers))


def accelerated_layers(model: nn.Module) -> tuple[str, ...]:
    """The names of the layers that run on the kernels; none if the model is not accelerated."""
    forward = model.__dict__.get("forward")
    return forward.layers() if isinstance(forward, SparseForward) else ()


def layers_of(piece: SparsePiece) -> tuple[str, ...]:
    return tuple(name.removesuffix(".weight") for name, _ in piece.weights())


def install(model: Model, topology: Topology, accept: Accept) -> Model:
    """Let the pieces that are accepted run on the kernels; log what came of it."""
    restore(model)
    try:
        operators()
        forward = SparseForward(model, topology, accept)
    except (BuildError, Unsupported) as reason:
        logger.warning("not accelerated: %s", reason)
        return model
    model.forward = forward
    topology.copies = CompiledCopies()
    logger.info("accelerated %s", forward)
    return model


def restore(model: nn.Module) -> None:
    """Give the model back the `forward` of its class."""
    if isinstance(model.__dict__.get("forward"), SparseForward):
        del model.forward
        for parameter in model.parameters():
            release(parameter)


class Unsupported(Exception):
    """This model cannot be accelerated; the message says why."""


class SparseForward:
    """The `forward` of an accelerated model. One program for each combination of modes, which are constants in a trace."""

    def __init__(self, model: nn.Module, topology: Topology, accept: Accept) -> None:
        self.model, self.topology, self.accept = model, topology, accept
        self._structure = Structure(model)
        if not self._on_kernels():
            raise Unsupported(
                "the kernels compute in float32 on the CPU; the model's parameters are elsewhere"
            )
        self._programs: dict[Modes, GraphModule | None] = {
            self._structure.modes(): build(model, topology, accept)
        }
        self._dense_steps = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self.model
        program = None if self._dense_wanted() or not self._on_kernels() else self._program()
        if program is None:
            return type(model).forward(model, *args, **kwargs)
        return program(*args, **kwargs)

    def _program(self) -> GraphModule | None:
        """The program for the model as it is now; None if nothing of it can run on the kernels any more."""
        if not self._structure.holds():
            logger.info("%s has changed since it was accelerated: traced anew", type(self.model).__name__)
            self._structure = Structure(self.model)
            self._programs.clear()
        modes = self._structure.modes()
        if modes not in self._programs:
            try:
                self._programs[modes] = build(self.model, self.topology, self.accept)
            except Unsupported as reason:
                logger.warning("no longer accelerated: %s", reason)
                self._programs[modes] = None
        return self._programs[modes]

    def _dense_wanted(self) -> bool:
        """Whether the coming backward pass has to give the dense gradient."""
        wanted = self.model.training and torch.is_grad_enabled() and self.topology.dense_grad_needed
        self._dense_steps = self._dense_steps + 1 if wanted else 0
        if self._dense_steps == DENSE_STEPS:
            logger.warning(
                "the optimizer asks for the dense gradient at every step, as clip='paper' does: "
                "the sparse kernels cannot help while it does"
            )
        return wanted

    def _on_kernels(self) -> bool:
        return all(
            type(each) is ActiveParameter or (each.is_cpu and each.dtype == torch.float32)
            for each in self._structure.parameters()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy has masks of its own or none: it goes the way of its class.
        return getattr, (self.model, "forward")

    def layers(self) -> tuple[str, ...]:
        """Names of the layers that run on the kernels."""
        return tuple(name for piece in self._pieces() for name in layers_of(piece))

    def pieces(self) -> int:
        """Number of parts of the network that run on the kernels."""
        return len(self._pieces())

    def _pieces(self) -> list[SparsePiece]:
        programs = (program for program in self._programs.values() if program is not None)
        return [each for each in next(programs, nn.Module()).children() if isinstance(each, SparsePiece)]

    def __repr__(self) -> str:
        layers, pieces = (
            f"{count} {noun}{'' if count == 1 else 's'}"
            for count, noun in ((len(self.layers()), "layer"), (self.pieces(), "piece"))
        )
        return f"{type(self.model).__name__}: {layers} in {pieces} on sparse kernels"


def build(model: nn.Module, topology: Topology, accept: Accept) -> GraphModule:
    """The model's trace with the accepted pieces on the kernels. Raises `Unsupported`."""
    traced = trace(model)
    pieces = {
        module: piece for module, piece in training_pieces(model, traced, topology).items() if accept(module)
    }
    if not pieces:
        raise Unsupported("no part of the model that the kernels know is sparse enough to gain from them")
    rewrite(traced, pieces)
    return traced


def training_pieces(
    model: nn.Module, traced: GraphModule, topology: Topology
) -> dict[SparsePiece, Piece[Any]]:
    """All parts of the model that the kernels can run, each with what runs it."""
    regions, chains = find_pieces(model, traced.graph)
    return {
        **{SparseRegion(each.content, topology): each for each in regions},
        **{SparseChain(each.content, topology): each for each in chains},
    }


def trace(model: nn.Module) -> GraphModule:
    try:
        return GraphModule(model, Tracer().trace(model))
    except Exception as error:  # fx raises errors of many kinds, and the model's own
        raise Unsupported(f"torch.fx cannot trace {type(model).__name__}: {error}") from error


def find_pieces(model: nn.Module, graph: Graph) -> tuple[list[Piece[Region]], list[Piece[Chain]]]:
    """What the kernels can run: regions of convolutions, and chains of linear layers."""
    return Matcher(model, graph).pieces(), match_chains(model, graph)


def sparsity(piece: Any, topology: Topology) -> float:
    """Share of zeros over all weights of a piece."""
    weights = piece.weights()
    active = sum(topology.active(name) if name in topology.masks else each.numel() for name, each in weights)
    return 1 - active / sum(each.numel() for _, each in weights)
