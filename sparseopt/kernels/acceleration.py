"""How a model is accelerated.

What can be traced once for every call is one program, in which the sparse layers run on the kernels. What cannot, because its
Python may do otherwise at another call, is called as it is written, and the parts below it are programs of their own: at the
least, single layers.
"""

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.fx import GraphModule
from torch.jit._trace import is_tracing

from sparseopt.kernels.conv.region import SparseRegion
from sparseopt.kernels.guarded import GuardedPiece, SparsePiece
from sparseopt.kernels.linear.chain import SparseChain
from sparseopt.kernels.match.convs import Names
from sparseopt.kernels.match.graph import Region
from sparseopt.kernels.match.modules import (
    Replacement,
    has_global_hooks,
    holds_modules,
    is_leaf,
    tied_modules,
    weight_parameter,
)
from sparseopt.kernels.match.pieces import find_pieces_in
from sparseopt.kernels.match.python import Guard
from sparseopt.kernels.match.reasons import layers as layers_in
from sparseopt.kernels.match.reasons import not_known, reasons_in
from sparseopt.kernels.match.rewrite import Piece, extract, rewrite
from sparseopt.kernels.match.structure import Modes, Structure
from sparseopt.kernels.match.tracing import Unsupported, trace_provable
from sparseopt.topology import Topology

logger = logging.getLogger(__name__)

Accept = Callable[[SparsePiece], bool]

CHANGES = 3  # of attributes that a module's Python reads, after which it is no longer traced
KEPT_PROGRAMS = 8  # combinations of modes whose programs are cached

COMPILED = "it is compiled: accelerate the model before it is given to torch.compile"
SCRIPTED = "it is a TorchScript module: accelerate the model before it is scripted"
NOT_ACCELERATED = "the model is not accelerated"
ANOTHER = "none of the topology's parameters is here"
WITH_OWN_FUNCTION = (nn.MultiheadAttention,)  # what is in them they do not call


def forwards(model: nn.Module) -> Iterator["SparseForward"]:
    for module in model.modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, SparseForward):
            yield forward


def accelerated_layers(model: nn.Module, *, waiting: bool = False) -> tuple[str, ...]:
    """The names of the layers that run on the kernels; none if the model is not accelerated.

    Args:
        model: the network.
        waiting: name those as well that will, once they have zeros enough.
    """
    pieces = (piece for forward in forwards(model) for piece in forward.guarded() if waiting or piece.pays())
    return tuple(dict.fromkeys(name for piece in pieces for name in layers_of(piece.sparse)))


def layers_of(piece: SparsePiece) -> tuple[str, ...]:
    return tuple(name.removesuffix(".weight") for name, _ in piece.weights())


class Acceleration:
    """What the accelerated parts of one model share: `why_dense` says of every layer why it runs densely, None if it does not.

    Pieces that are accepted run on the kernels, as long as their share of zeros is at least `break_even`.
    """

    def __init__(
        self,
        model: nn.Module,
        topology: Topology,
        accept: Accept,
        activations: torch.dtype = torch.float32,
        break_even: float = 0.0,
    ) -> None:
        self.model, self.topology, self.accept, self.activations = model, topology, accept, activations
        self.break_even = break_even
        self.suspended = False  # everything runs densely
        self.reasons: dict[nn.Module, str | ref[GuardedPiece]] = {}  # why a layer is dense, or where it runs
        self.changes: Counter[nn.Module] = Counter()

    def enter(
        self,
        module: nn.Module,
        why: str = "its parent does not call it as a module that can be seen in a trace",
    ) -> None:
        """Accelerate a module as a whole, or else what is below it. `why` it would be dense if nothing else is known."""
        if isinstance(module.__dict__.get("forward"), SparseForward):
            return
        refused = _refused(module)
        if refused is not None:
            for _, layer in layers_in(module):
                if layer is not module:
                    self.reasons[layer] = refused
            return
        for _, layer in layers_in(module):
            self.reasons[layer] = why if isinstance(layer, nn.Linear | nn.Conv2d) else not_known(layer)
        if is_leaf(module) and holds_modules(module):
            self._enter_children(module, why)
            return
        try:
            forward = SparseForward(module, self)
        except Unsupported as reason:
            self._enter_children(module, str(reason))
            return
        if forward.guarded():
            module.forward = forward

    def _enter_children(self, module: nn.Module, why: str) -> None:
        for child in module.children():
            self.enter(child, why)

    def names(self) -> Names:
        """Layers that are sparse have the topology's names, wherever they are in this model."""
        known = {parameter: name for name, parameter in self.topology.parameters.items()}
        here = {module: name for name, module in self.model.named_modules()}

        def name_of(module: nn.Module, target: str) -> str:
            weight = weight_parameter(module)
            if weight is not None and weight in known:
                return known[weight]
            name = f"{here.get(module, target)}.weight".removeprefix(".")
            return name if name not in self.topology.layers else f"{name} (another)"

        return name_of

    def build(self, module: nn.Module) -> "Program":
        """The module's trace with the accepted pieces on the kernels. Raises `Unsupported`."""
        volatile = {each for each, times in self.changes.items() if times > CHANGES}
        traced = trace_provable(module, volatile)
        tied = tied_modules(self.model)
        found = find_pieces_in(traced.modules, traced.graph, tied, self.names())
        own = "its class has a forward of its own"
        layers = (each for each in traced.entered if isinstance(each, nn.Linear | nn.Conv2d))
        self.reasons |= {each: own for each in layers if each in self.reasons}
        self.reasons |= reasons_in(traced.modules, traced.graph, tied)
        kept: dict[GuardedPiece, Piece[Any]] = {}
        for piece in found:
            sparse = _sparse(piece, self.topology, self.activations)
            where = wrong_kind(sparse) or self._why_not_accepted(sparse)
            if where is None:
                guarded = GuardedPiece(sparse, extract(traced.program, piece), self.topology, self.break_even)
                kept[guarded], where = piece, ref(guarded)
            self.reasons |= dict.fromkeys(_modules_of(piece), where)
        rewrite(traced.program, kept)
        for called in traced.modules.values():
            if called in traced.opaque or holds_modules(called):
                why = traced.opaque.get(called, "computes with its weights itself")
                self.enter(called, f"{type(called).__name__}, which holds it, {why}")
        return Program(traced.program, list(kept), traced.guards)

    def _why_not_accepted(self, piece: SparsePiece) -> str | None:
        known = any(name in self.topology.layers for name, _ in piece.weights())
        if self.accept(piece) and (known or self.break_even <= 0):
            return None
        return "not among the layers that were chosen" if known else ANOTHER

    def why_dense(self, module: nn.Module) -> str | None:
        where = self.reasons.get(module, NOT_ACCELERATED)
        if isinstance(where, str):
            return where
        piece = where()
        if piece is None:
            return NOT_ACCELERATED
        if piece.pays():
            return None
        return f"{piece.zeros():.1%} zeros in the layers that run together, which pays from {piece.break_even:.0%} on"

    def why_nothing(self) -> str:
        refused = _refused(self.model)
        counted = Counter(reason for each in self.reasons if (reason := self.why_dense(each)) is not None)
        if refused is not None or not counted:
            return refused or f"{type(self.model).__name__} has no layer that the kernels know"
        ((reason, count),) = counted.most_common(1)
        if reason == ANOTHER and count == len(self.reasons):
            return f"the topology is of another model: {type(self.model).__name__} has none of its parameters"
        return f"no layer runs on the kernels; {count} of {sum(counted.values())}: {reason}"

    def __str__(self) -> str:
        layers = len(accelerated_layers(self.model))
        pieces = sum(each.pieces() for each in forwards(self.model))
        return f"{type(self.model).__name__}: {count(layers, 'layer')} in {count(pieces, 'piece')} on sparse kernels"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _refused(module: nn.Module) -> str | None:
    """Modules that are not looked into."""
    if isinstance(module, torch.jit.ScriptModule):
        return SCRIPTED
    if "_orig_mod" in module._modules:
        return COMPILED
    if isinstance(module, WITH_OWN_FUNCTION):
        return f"{type(module).__name__} computes with its weights itself"
    return None


LARGEST = 2**31


def wrong_kind(piece: SparsePiece) -> str | None:
    """Why the kernels cannot compute with the weights of a piece as they are; None if they can."""
    for name, weight in piece.weights():
        if weight.device.type != "cpu":
            return f"the kernels run on the CPU, and {name} is on {weight.device}"
        if weight.dtype != torch.float32:
            return f"the kernels compute in float32, and {name} is {weight.dtype}: call model.float() first"
        if weight.numel() >= LARGEST:
            return f"the kernels number weights in 32 bits, and {name} has {weight.numel():,}"
    return None


def _sparse(piece: Piece[Any], topology: Topology, activations: torch.dtype) -> SparsePiece:
    if isinstance(piece.content, Region):
        return SparseRegion(piece.content, topology, activations)
    return SparseChain(piece.content, topology)


def _modules_of(piece: Piece[Any]) -> list[nn.Module]:
    parts = piece.content.convs if isinstance(piece.content, Region) else piece.content
    return [part.module for part in parts]


@dataclass(frozen=True, eq=False)
class Program:
    """A trace in which some pieces run on the kernels, and what it relies on besides the structure of the model."""

    module: GraphModule
    pieces: list[GuardedPiece]
    guards: list[Guard]


class SparseForward(Replacement):
    """The `forward` of an accelerated module. One program for each combination of modes, which are constants in a trace."""

    def __init__(self, module: nn.Module, shared: Acceleration) -> None:
        self.module, self.shared = module, shared
        own = type(module).forward.__get__(module)
        self.__signature__, self.__code__, self.__doc__ = inspect.signature(own), own.__code__, own.__doc__
        self._structure = Structure(module.modules())
        self._programs: dict[Modes, Program | None] = {self._structure.modes(): shared.build(module)}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        program = None if _is_exporting() else self.program()
        if program is None:
            return type(self.module).forward(self.module, *args, **kwargs)
        return program.module.forward(*args, **kwargs)

    @_disable_dynamo
    def program(self) -> Program | None:
        """The program for the module as it is now; None if it is to run densely: a compiler then sees the module's own code."""
        if self.shared.suspended or has_global_hooks():
            return None
        found = self._traced()
        return found if found is not None and any(piece.pays() for piece in found.pieces) else None

    def _traced(self) -> Program | None:
        if not self._structure.holds():
            logger.info("%s has changed since it was accelerated: traced anew", type(self.module).__name__)
            self._structure = Structure(self.module.modules())
            self._programs.clear()
        modes = self._structure.modes()
        if modes in self._programs:
            found = self._programs[modes]
            if found is None or self._hold(found.guards):
                return found
            self._programs.clear()
        if len(self._programs) >= KEPT_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        try:
            self._programs[modes] = self.shared.build(self.module)
        except Unsupported as reason:
            logger.warning("no longer accelerated: %s", reason)
            self._programs[modes] = None
            self.shared._enter_children(self.module, str(reason))
        return self._programs[modes]

    def _hold(self, guards: list[Guard]) -> bool:
        for guard in guards:
            if not guard.holds():
                self.shared.changes[guard.reader] += 1
                return False
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy has masks of its own or none: it goes the way of its class.
        return getattr, (self.module, "forward")

    def guarded(self) -> list[GuardedPiece]:
        """The parts that can run on the kernels, in the mode that was traced first and is still known."""
        return next((program.pieces for program in self._programs.values() if program is not None), [])

    def layers(self) -> tuple[str, ...]:
        """Names of the layers that run on the kernels now."""
        return tuple(name for piece in self.guarded() if piece.pays() for name in layers_of(piece.sparse))

    def pieces(self) -> int:
        """Number of parts of the module that run on the kernels now."""
        return sum(piece.pays() for piece in self.guarded())

    def __repr__(self) -> str:
        found = f"{count(len(self.layers()), 'layer')} in {count(self.pieces(), 'piece')}"
        return f"{type(self.module).__name__}: {found} on sparse kernels"


def _is_exporting() -> bool:
    """Exporters and tracers are given the dense network: the kernels are not operators that they know."""
    exporting = getattr(torch.compiler, "is_exporting", None)
    return is_tracing() or (exporting is not None and exporting())
