"""Traces of modules that hold for every call, or a sentence that says why there is none.

The tracer enters modules whose Python is known to do the same at every call (see `python.py`) and calls all others as they are
written: those with hooks, those with Python of their own that cannot be proven, those that torch.fx cannot follow,
those that make tensors out of nothing on the way. What the trace relies on is in its `guards`.

An assert is a node of the trace, and asks at every call. Its message may print values: what it says is not needed for anything.
"""

import dis
import inspect
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node, Proxy, Tracer
from torch.fx.proxy import Attribute, TraceError
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sparseopt.kernels.match.modules import has_own_forward, is_known_leaf, is_leaf, must_be_called
from sparseopt.kernels.match.mutation import says_in_place, without_mutation
from sparseopt.kernels.match.python import Guard, Proof, Unprovable

ALONE = "layer"  # the name of a module that is a trace of its own
IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor")
VALUE = "<value>"  # stands for a value in the message of an assert
WITHOUT_EFFECT = frozenset({"EXTENDED_ARG", "CACHE", "NOP", "PRECALL", "KW_NAMES", "NOT_TAKEN"})
MAKES_TEXT = frozenset(
    {
        *("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "BUILD_STRING", "LOAD_CONST", "LOAD_ATTR"),
        *("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF", "BINARY_SUBSCR"),
    }
)


@dataclass(frozen=True)
class Call:
    """A place in a function's code: the instruction that calls, and the one after it."""

    code: CodeType
    begin: int
    end: int

    def made_by(self, frame: FrameType) -> bool:
        return frame.f_code is self.code and self.begin <= frame.f_lasti < self.end


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


def trace(model: nn.Module, left_out: Mapping[str, Any] | None = None) -> GraphModule:
    """One trace of the whole model, its Python frozen as it is now, whatever it is. Raises `Unsupported`.

    `left_out`: arguments that have these values at every call, which may leave them out, and must.
    """
    try:
        graph = _whole_graph(model, left_out or {})
    except Exception as error:  # fx raises errors of many kinds, and the model's own
        raise Unsupported(f"torch.fx cannot trace {type(model).__name__}: {error}") from error
    without_mutation(graph, dict(model.named_modules()))
    return GraphModule(model, graph)


def _whole_graph(model: nn.Module, left_out: Mapping[str, Any]) -> Graph:
    """Buffers are what they are now; where a call decides which part of one is read, they are values of the trace."""
    tracer = _FreezingTracer()
    try:
        graph = tracer.trace(model, dict(left_out) or None)
    except Exception:
        tracer = _FreezingTracer()
        tracer.proxy_buffer_attributes = True
        graph = tracer.trace(model, dict(left_out) or None)
    _leave_out(graph, left_out)
    return graph


def defaults(model: nn.Module) -> dict[str, Any]:
    """The arguments of a model's `forward` that may be left out, with the plain values that they have then."""
    try:
        parameters = inspect.signature(type(model).forward).parameters
    except (TypeError, ValueError):
        return {}
    return {
        name: each.default
        for name, each in parameters.items()
        if each.default is None or isinstance(each.default, bool | int | float | str)
    }


def _leave_out(graph: Graph, names: Mapping[str, Any]) -> None:
    """Take away arguments, which torch.fx has numbered, and the checks of their values, which are all that reads them."""
    for node in list(graph.nodes):
        if node.op == "placeholder" and str(node.target).rpartition("_")[0] in names:
            for reader in list(node.users):
                for check in list(reader.users):
                    graph.erase_node(check)
                graph.erase_node(reader)
            graph.erase_node(node)


def unprovable_python(model: nn.Module) -> dict[str, str]:
    """Modules, by name, whose Python a trace of the whole model would freeze although it might do otherwise at another call."""
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if type(module).forward is nn.Module.forward:
            continue  # a list of modules, which nobody calls
        if not is_leaf(module) and (reason := why_not_entered(module)) is not None:
            found[name] = reason
    return found


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


class Following(Tracer):
    """A tracer that sees `x += y`, which torch.fx takes for `x = x + y`, and refuses what only a value can answer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.unsaid: set[Call] = (
            set()
        )  # that a value was made a text for, and that have not turned out to be asserts

    def proxy(self, node: Node) -> Proxy:
        return _InPlaceProxy(node, self)

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> Graph:
        graph = super().trace(root, concrete_args)
        self.check_said()
        return graph

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **options: Any) -> Any:
        if target is torch._assert:
            frames = list(_frames(sys._getframe(1)))
            if any(map(_catches, frames)):
                raise TraceError("an assert may be caught")
            self.unsaid = {call for call in self.unsaid if not any(map(call.made_by, frames))}
        return super().create_proxy(kind, target, args, kwargs, *more, **options)

    def check_said(self) -> None:
        if self.unsaid:
            raise TraceError("a value is made a text")

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m)


class _FreezingTracer(Following):
    """For engines: follows Python that goes through the parts of a `chunk`."""

    def iter(self, obj: Proxy) -> Iterator[Any]:
        node = obj.node
        if node.target in ("chunk", torch.chunk):
            count = node.args[1] if len(node.args) > 1 else node.kwargs.get("chunks")
            if type(count) is int:
                checked = self.create_proxy("call_function", parts, (obj, count), {})
                return (checked[index] for index in range(count))  # pyright: ignore[reportIndexIssue]
        return super().iter(obj)


def parts(values: Sequence[Any], count: int) -> Sequence[Any]:
    """What a trace has gone through one by one, if it is as many."""
    if len(values) != count:
        raise ValueError(f"the engine was made for {count} parts of a tensor, and it has {len(values)}")
    return values


class _Unasked:
    """No hash and no text: what Python made of them would not be what it makes of the value that is stood for."""

    def __hash__(self) -> int:
        raise TraceError("a value is looked up in a set or a dictionary")

    def __str__(self) -> str:
        raise TraceError("a value is made a text")

    __repr__ = __str__

    def __format__(self: Any, spec: str) -> str:
        call = _call_with_message(sys._getframe(1))
        if call is None:
            raise TraceError("a value is made a text")
        self.tracer.unsaid.add(call)
        return VALUE

    def __bool__(self: Any) -> bool:
        frame = sys._getframe(1)
        answer = _asserted(frame)
        if answer is None:
            return self.tracer.to_bool(self)
        create, where = self.tracer.create_proxy, f"{frame.f_code.co_filename}, line {frame.f_lineno}"
        held = self if answer else create("call_function", operator.not_, (self,), {})
        create("call_function", torch._assert, (held, f"assert in {where}"), {})
        return answer


def _steps_from(frame: FrameType) -> list[dis.Instruction]:
    """The instruction that a frame is at, and those after it."""
    steps = dis.get_instructions(frame.f_code)
    return [each for each in steps if each.offset >= frame.f_lasti and each.opname not in WITHOUT_EFFECT]


def _call_with_message(frame: FrameType) -> Call | None:
    """The call that the text being made goes straight into, if nobody reads its result: `torch._assert` is to be the one."""
    steps = _steps_from(frame)[1:]
    end = next((at for at, each in enumerate(steps) if each.opname not in MAKES_TEXT), len(steps))
    match steps[end : end + 2]:
        case [dis.Instruction(opname="CALL" | "CALL_KW") as call, dis.Instruction(opname="POP_TOP") as after]:
            return Call(frame.f_code, call.offset, after.offset)
    return None


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers, up to the tracer."""
    while frame is not None and frame.f_code is not Following.trace.__code__:
        yield frame
        frame = frame.f_back


def _catches(frame: FrameType) -> bool:
    """Has it a `try`, or a `with`, which may catch what an assert raises? torch's and our own let it pass."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package not in ("torch", "sparseopt") and bool(frame.f_code.co_exceptiontable)


def _asserted(frame: FrameType) -> bool | None:
    """The answer that keeps an assert from raising, if it is an assert that asks."""
    if any(map(_catches, _frames(frame))):
        return None
    steps = [each for each in _steps_from(frame) if each.opname != "TO_BOOL"][:2]
    if len(steps) < 2 or not steps[0].opname.startswith("POP_JUMP"):
        return None
    jumps_if = steps[0].opname.endswith("IF_TRUE")
    if not jumps_if and not steps[0].opname.endswith("IF_FALSE"):
        return None
    if _raises(steps[1]):
        return jumps_if
    target = (each for each in dis.get_instructions(frame.f_code) if each.offset == steps[0].argval)
    return not jumps_if if any(map(_raises, target)) else None


def _raises(step: dis.Instruction) -> bool:
    return step.opname == "LOAD_ASSERTION_ERROR" or step.argval is AssertionError


class _InPlaceProxy(_Unasked, Proxy):
    def __getattr__(self, name: str) -> "_Attribute":
        return _Attribute(self, name)


class _Attribute(_Unasked, Attribute):
    """What `x.shape` and the like are."""


def _in_place(name: str) -> Callable[[Proxy, Any], Proxy]:
    def method(self: Proxy, other: Any) -> Proxy:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    return method


for _name in IN_PLACE:
    setattr(_InPlaceProxy, f"__{_name}__", _in_place(_name))


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
