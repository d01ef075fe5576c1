"""torch.fx, made to see what it would take for something else: `x += y`, asserts, and values that only a call can answer for."""

import operator
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node, Proxy, Tracer
from torch.fx.proxy import Attribute, TraceError

from sparseopt.kernels.match.asserts import Call, asserted, call_with_message, may_be_caught
from sparseopt.kernels.match.modules import is_leaf

IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor")
VALUE = "<value>"  # stands for a value in the message of an assert


class Following(Tracer):
    """A tracer that sees `x += y`, which torch.fx takes for `x = x + y`, and refuses what only a value can answer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # calls that a value was made a text for, and that have not turned out to be asserts
        self.unsaid: set[Call] = set()

    def proxy(self, node: Node) -> Proxy:
        return _InPlaceProxy(node, self)

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> Graph:
        graph = super().trace(root, concrete_args)
        self.check_said()
        return graph

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **options: Any) -> Any:
        if target is torch._assert:
            frames = list(_frames(sys._getframe(1)))
            if may_be_caught(frames):
                raise TraceError("an assert may be caught")
            self.unsaid = {call for call in self.unsaid if not any(map(call.made_by, frames))}
        return super().create_proxy(kind, target, args, kwargs, *more, **options)

    def check_said(self) -> None:
        if self.unsaid:
            raise TraceError("a value is made a text")

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers, up to the tracer."""
    while frame is not None and frame.f_code is not Following.trace.__code__:
        yield frame
        frame = frame.f_back


class _Unasked:
    """No hash and no text: what Python made of them would not be what it makes of the value that is stood for."""

    def __hash__(self) -> int:
        raise TraceError("a value is looked up in a set or a dictionary")

    def __str__(self) -> str:
        raise TraceError("a value is made a text")

    __repr__ = __str__

    def __format__(self: Any, spec: str) -> str:
        call = call_with_message(sys._getframe(1))
        if call is None:
            raise TraceError("a value is made a text")
        self.tracer.unsaid.add(call)
        return VALUE

    def __bool__(self: Any) -> bool:
        frame = sys._getframe(1)
        answer = None if may_be_caught(_frames(frame)) else asserted(frame)
        if answer is None:
            return self.tracer.to_bool(self)
        create, where = self.tracer.create_proxy, f"{frame.f_code.co_filename}, line {frame.f_lineno}"
        held = self if answer else create("call_function", operator.not_, (self,), {})
        create("call_function", torch._assert, (held, f"assert in {where}"), {})
        return answer


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
