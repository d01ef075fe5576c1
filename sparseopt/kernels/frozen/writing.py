"""Write an engine into a file: its graph as the operations that `saved` runs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn import functional as F

from sparseopt.kernels.frozen.chain import FrozenChain
from sparseopt.kernels.frozen.description import Convs, Head, Linears, PoolStep, SparseWeight, Step
from sparseopt.kernels.frozen.operations import NAMES, as_function, passes_through
from sparseopt.kernels.frozen.pool import FrozenPool
from sparseopt.kernels.frozen.region import FrozenRegion
from sparseopt.kernels.frozen.saved import FORMAT, Saved
from sparseopt.kernels.frozen.tensorfile import encode
from sparseopt.kernels.match.modules import norm_activation
from sparseopt.topology.bits import pack


class Unsaved(ValueError):
    """An engine that does something a file cannot say."""


@dataclass
class _EngineWriter:
    """Numbers what it writes; tensors by the names it gives them."""

    program: GraphModule
    tensors: dict[str, Tensor] = field(default_factory=dict)
    operations: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[Node, int] = field(default_factory=dict)

    def tensor(self, tensor: Tensor) -> str:
        name = f"tensor {len(self.tensors)}"
        self.tensors[name] = tensor.detach().contiguous().clone()
        return name

    def write(self) -> list[dict[str, Any]]:
        for node in self.program.graph.nodes:
            self._write(node)
        return self.operations

    def _write(self, node: Node) -> None:
        match node.op:
            case "placeholder":
                default = {"default": self.value(node.args[0])} if node.args else {}
                self._add(node, {"input": str(node.target), **default})
            case "get_attr":
                self._add(node, {"constant": self.value(_attribute(self.program, str(node.target)))})
            case "call_function":
                if node.target not in NAMES:
                    raise Unsaved(f"it calls {_name(node.target)}, which is not among what a file may name")
                self._call(node, NAMES[node.target], node.args, node.kwargs)
            case "call_method":
                self._add(node, {"method": str(node.target), **self.arguments(node.args, node.kwargs)})
            case "call_module":
                self._module(node, _attribute(self.program, str(node.target)))
            case _:
                self._add(node, {"output": self.value(node.args[0])})

    def _module(self, node: Node, module: nn.Module) -> None:
        if isinstance(module, FrozenRegion | FrozenChain):
            piece = (
                self._convs(module.content)
                if isinstance(module, FrozenRegion)
                else self._linears(module.content)
            )
            return self._add(node, {**piece, **self.arguments(node.args, {})})
        if passes_through(module):
            self.numbers[node] = self.numbers[node.args[0]]  # pyright: ignore[reportArgumentType]
            return None
        if isinstance(module, FrozenPool):
            return self._call(node, "sparseopt.max_pool", (*node.args, *module.options), {})
        form = as_function(module) if len(node.args) == 1 and not node.kwargs else None
        if form is None:
            raise Unsaved(
                f"its module {node.target!r}, a {type(module).__name__}, is Python that a file cannot hold"
            )
        function, args, kwargs = form
        self._call(node, NAMES[function], (*node.args, *args), kwargs)
        if isinstance(norm_activation(module), nn.ReLU):
            self._call(node, NAMES[F.relu], (node,), {})
        return None

    def _call(self, node: Node, name: str, args: Any, kwargs: Any) -> None:
        self._add(node, {"call": name, **self.arguments(args, kwargs)})

    def _add(self, node: Node, operation: dict[str, Any]) -> None:
        self.numbers[node] = len(self.operations)
        self.operations.append(operation)

    def arguments(self, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "args": [self.value(each) for each in args],
            "kwargs": {name: self.value(each) for name, each in kwargs.items()},
        }

    def value(self, value: Any) -> Any:
        match value:
            case Node():
                return {"node": self.numbers[value]}
            case Tensor():
                return {"tensor": self.tensor(value)}
            case tuple() | list():
                return {"list" if type(value) is list else "tuple": [self.value(each) for each in value]}
            case dict() if all(isinstance(key, str) for key in value):
                return {"dict": {key: self.value(each) for key, each in value.items()}}
            case slice():
                return {"slice": [self.value(each) for each in (value.start, value.stop, value.step)]}
            case None | bool() | int() | float() | str():
                return value
            case _ if value is Ellipsis:
                return {"ellipsis": True}
        raise Unsaved(f"it has a constant of type {type(value).__name__}, which is not data")

    def _weight(self, weight: SparseWeight) -> dict[str, Any]:
        return {
            "shape": list(weight.shape),
            "mask": self.tensor(pack(weight.mask())),
            "values": self.tensor(weight.values),
        }

    def _convs(self, convs: Convs) -> dict[str, Any]:
        steps = [self._step(step) for step in convs.steps]
        ends = [
            {
                "value": end.value,
                "pooled": end.pooled,
                "head": None if end.head is None else self._head(end.head),
            }
            for end in convs.ends
        ]
        return {"region": {"inputs": list(convs.inputs), "steps": steps, "ends": ends}}

    def _step(self, step: Step) -> dict[str, Any]:
        window = {"input": step.input, "stride": step.stride, "padding": list(step.padding)}
        if isinstance(step, PoolStep):
            return {"pool": list(step.kernel), **window}
        return {
            "name": step.name,
            **window,
            "weight": self._weight(step.weight),
            "bias": self.tensor(step.bias),
            "relu": step.relu,
            "shortcut": step.shortcut,
            "shortcut_stride": step.shortcut_stride,
            "shortcut_offset": step.shortcut_offset,
        }

    def _head(self, head: Head) -> dict[str, Any]:
        return {"name": head.name, "weight": self._weight(head.weight), "bias": self.tensor(head.bias)}

    def _linears(self, linears: Linears) -> dict[str, Any]:
        steps = [
            {
                "name": step.name,
                "weight": self._weight(step.weight),
                "bias": self.tensor(step.bias),
                "activation": step.activation.name,
            }
            for step in linears.steps
        ]
        return {"chain": {"steps": steps, "flat": linears.flat}}


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _name(target: Any) -> str:
    return getattr(target, "__qualname__", str(target))


def write(program: nn.Module | Saved, notes: Mapping[str, Any], path: str | Path) -> None:
    """`notes`: what the engine says of itself, as JSON."""
    if isinstance(program, Saved):
        tensors, operations = program.tensors, program.operations
    elif not isinstance(program, GraphModule):
        raise Unsaved("torch.fx cannot trace the model, so the engine needs its Python code")
    else:
        writer = _EngineWriter(program)
        operations, tensors = writer.write(), writer.tensors
    notes_and_operations = {"operations": json.dumps(operations), "notes": json.dumps(dict(notes))}
    Path(path).write_bytes(encode(tensors, {"format": FORMAT, **notes_and_operations}))
