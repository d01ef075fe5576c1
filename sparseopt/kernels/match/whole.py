"""One trace of a whole model, its Python frozen as it is now: what an engine is made of."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Proxy

from sparseopt.kernels.match.following import Following
from sparseopt.kernels.match.modules import is_leaf
from sparseopt.kernels.match.mutation import without_mutation
from sparseopt.kernels.match.tracing import Unsupported, why_not_entered


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
    tracer = _Freezing()
    try:
        graph = tracer.trace(model, dict(left_out) or None)
    except Exception:
        tracer = _Freezing()
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


class _Freezing(Following):
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
