"""Traces of modules that hold for every call, or a sentence that says why there is none.

The tracer enters modules whose Python is known to do the same at every call (see `python.py`) and calls all others as they are
written: those with hooks, those with Python of their own that cannot be proven, those that torch.fx cannot follow,
those that make tensors out of nothing on the way. What the trace relies on is in its `guards`.

An assert is a node of the trace (see `asserts.py`), and asks at every call.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.fx import Graph, GraphModule, Proxy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sparseopt.kernels.match.following import IN_PLACE, Following
from sparseopt.kernels.match.modules import has_own_forward, is_known_leaf, is_leaf, must_be_called
from sparseopt.kernels.match.mutation import says_in_place, without_mutation
from sparseopt.kernels.match.python import Guard, Proof, Unprovable

ALONE = "layer"  # the name of a module that is a trace of its own


class Unsupported(Exception):
    """This model cannot be accelerated; the message says why."""


@dataclass(frozen=True, eq=False)
class Trace:
    """`modules` are those the program calls, by name; `opaque` of them are called as they are written, each with the reason."""

    program: GraphModule
    modules: dict[str, nn.Module]
    entered: list[nn.Module]
    opaque: dict[nn.Module, str]
    guards: list[Guard]

    @property
    def graph(self) -> Graph:
        return self.program.graph


def trace_provable(model: nn.Module, volatile: Collection[nn.Module] = ()) -> Trace:
    """The trace of a model. `volatile` modules, whose attributes keep changing, are not entered. Raises `Unsupported`."""
    if is_leaf(model):
        return _alone(model)
    opaque = dict.fromkeys(volatile, "attributes that its forward reads keep changing")
    if model in opaque:
        raise Unsupported(f"{type(model).__name__}: {opaque[model]}")
    while True:
        tracer = ProvableTracer(opaque)
        try:
            graph = tracer.follow(model)
        except Unprovable as reason:
            raise Unsupported(f"{type(model).__name__} {reason}") from reason
        if not tracer.blamed:
            break
        opaque |= tracer.blamed
    modules = {
        str(node.target): model.get_submodule(str(node.target))
        for node in graph.nodes
        if node.op == "call_module"
    }
    without_mutation(graph, modules)
    reasons = {module: tracer.reasons[module] for module in modules.values() if module in tracer.reasons}
    guards = [*tracer.guards, *_buffer_guards(model, graph)]
    return Trace(GraphModule(model, graph), modules, tracer.entered, reasons, guards)


def why_not_entered(module: nn.Module) -> str | None:
    """Why a module that is not a leaf is called as it is written; None if its Python is known."""
    if must_be_called(module):
        return "has hooks or a forward of its own"
    if type(module).forward is nn.Sequential.forward:
        return None
    try:
        Proof(module)
    except Unprovable as reason:
        return str(reason)
    return None


def _alone(model: nn.Module) -> Trace:
    graph = Graph()
    graph.output(graph.call_module(ALONE, (graph.placeholder("input"),)))
    return Trace(GraphModule({ALONE: model}, graph), {ALONE: model}, [], {}, [])


def _buffer_guards(model: nn.Module, graph: Graph) -> list[Guard]:
    """Parameters and buffers that the trace reads itself, by identity: assigning another one makes the trace another one."""
    guards: list[Guard] = []
    for node in graph.nodes:
        if node.op == "get_attr":
            path, _, name = str(node.target).rpartition(".")
            try:
                owner = model.get_submodule(path)
            except AttributeError:
                continue  # a constant of the trace
            held = (mapping for mapping in (owner._parameters, owner._buffers) if name in mapping)
            guards += [Guard(mapping, name, mapping[name], model) for mapping in held]
    return guards


class ProvableTracer(Following):
    """Enters what is provable; `blamed` are modules that turned out not to be while they were traced."""

    def __init__(self, opaque: dict[nn.Module, str]) -> None:
        super().__init__()
        self.reasons = dict(opaque)
        self.blamed: dict[nn.Module, str] = {}
        self.guards: list[Guard] = []
        self.entered: list[nn.Module] = []
        self._inside: list[nn.Module] = []

    def follow(self, model: nn.Module) -> Graph:
        """Raises `Unprovable` if the model itself is not to be traced."""
        if has_own_forward(model):
            raise Unprovable("has a forward of its own")
        self._enter(model)
        self._inside = [model]
        with _Watch(self):
            try:
                graph = self.trace(model)
            except Exception as error:  # fx raises errors of many kinds, and the model's own
                if not self.blamed:
                    raise Unprovable(f"cannot be traced: {error}") from error
                graph = Graph()
        if model in self.blamed:
            raise Unprovable(self.blamed[model])
        return graph

    def _enter(self, module: nn.Module) -> None:
        if type(module).forward is not nn.Sequential.forward:
            self.guards += Proof(module).guards
        self.entered.append(module)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if m in self.reasons:
            return True
        if is_leaf(m):
            if must_be_called(m) or not is_known_leaf(m):
                self.reasons[m] = "has hooks or Python of its own"
            return True
        if m not in self.entered:
            try:
                if must_be_called(m):
                    raise Unprovable("has hooks or a forward of its own")
                self._enter(m)
            except Unprovable as reason:
                self.reasons[m] = str(reason)
                return True
        return False

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        def enter(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(m)
            try:
                result = type(m).forward(m, *args, **kwargs)
                self.check_said()
                return result
            except Exception as error:
                if not self.blamed:
                    self.blamed[m] = f"cannot be traced: {error}"
                raise
            finally:
                self._inside.pop()

        return super().call_module(m, enter, args, kwargs)

    def blame(self, reason: str) -> None:
        self.blamed.setdefault(self._inside[-1], reason)


class _Watch(TorchFunctionMode):
    """Sees functions of torch that no value of the trace takes part in: they would run once, and not at every call."""

    def __init__(self, tracer: ProvableTracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(each, Proxy) for each in tree_leaves((args, kwargs))):
            name = getattr(func, "__name__", str(func))
            self.tracer.blame(f"calls {name} on values that no input decides")
            if says_in_place(name) or name.strip("_") in IN_PLACE:
                return args[0]  # the trace is lost, and what it would write into is the model's own
        return func(*args, **kwargs)
