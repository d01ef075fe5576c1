"""Write an engine into a file: its graph as the operations that `saved` runs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn import functional as F

from sparseopt.kernels.frozen.chain import FrozenChain
from sparseopt.kernels.frozen.description import Convs, Head, Linears, PoolStep, SparseWeight, Step
from sparseopt.kernels.frozen.operations import ATTRIBUTES, METHODS, NAMES, as_function, passes_through
from sparseopt.kernels.frozen.pool import FrozenPool
from sparseopt.kernels.frozen.region import FrozenRegion
from sparseopt.kernels.frozen.saved import FORMAT, Saved
from sparseopt.kernels.frozen.saved_modules import describe
from sparseopt.kernels.frozen.tensorfile import NAMES as DTYPES
from sparseopt.kernels.frozen.tensorfile import encode
from sparseopt.kernels.match.modules import is_known_leaf, must_be_called, norm_activation
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
    written: dict[object, tuple[str, Tensor]] = field(default_factory=dict)

    def tensor(self, tensor: Tensor) -> str:
        """Once, however many layers share it; those that were written are kept, so that no other has their place in memory."""
        place = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
        if place not in self.written:
            name = f"tensor {len(self.tensors)}"
            self.tensors[name] = tensor.detach().contiguous().clone()
            self.written[place] = name, tensor
        return self.written[place][0]

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
                _require_known(node, node.target in NAMES, _name(node.target))
                if node.target is getattr:
                    _require_known(node, node.args[1] in ATTRIBUTES, f"the attribute {node.args[1]!r}")
                self._call(node, NAMES[node.target], node.args, node.kwargs)
            case "call_method":
                _require_known(node, node.target in METHODS, f"the method {node.target!r}")
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
        known = is_known_leaf(module) and not must_be_called(module)
        plain = known and len(node.args) == 1 and not node.kwargs
        if plain and passes_through(module):
            self.numbers[node] = self.numbers[node.args[0]]  # pyright: ignore[reportArgumentType]
            return None
        if isinstance(module, FrozenPool):
            return self._call(node, "sparseopt.max_pool", (*node.args, *module.options), {})
        if plain and (form := as_function(module)) is not None:
            function, args, kwargs = form
            in_place = {"inplace": True} if getattr(module, "inplace", False) else {}
            self._call(node, NAMES[function], (*node.args, *args), {**kwargs, **in_place})
            if isinstance(norm_activation(module), nn.ReLU):
                self._call(node, NAMES[F.relu], (node,), {})
            return None
        described = describe(module) if known else None
        if described is None:
            raise Unsaved(
                f"its module {node.target!r}, a {type(module).__name__}, is Python that a file cannot hold"
            )
        name, options = described
        state = {key: self.tensor(each) for key, each in module.state_dict().items()}
        made = {"module": name, "options": options, "state": state}
        return self._add(node, {**made, **self.arguments(node.args, node.kwargs)})

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
            case torch.dtype() if value in DTYPES:
                return {"dtype": DTYPES[value]}
            case torch.device(type="cpu"):
                return {"device": "cpu"}
            case torch.memory_format():
                return {"memory_format": str(value).removeprefix("torch.")}
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
    return getattr(target, "__name__", str(target))


def _require_known(node: Node, known: bool, what: str) -> None:
    if not known:
        stack = list(node.meta.get("nn_module_stack", {}).values())
        where = f"in its module {stack[-1][0]!r} " if stack and stack[-1][0] else ""
        raise Unsaved(f"{where}it calls {what}, which is not among what a file may name")


def write(program: nn.Module | Saved, notes: Mapping[str, Any], path: str | Path) -> None:
    """`notes`: what the engine says of itself, as JSON."""
    if isinstance(program, Saved):
        tensors, operations = program.tensors, program.operations
    elif not isinstance(program, GraphModule):
        raise Unsaved("the model could not be traced, so the engine needs its Python code")
    else:
        writer = _EngineWriter(program)
        operations, tensors = writer.write(), writer.tensors
    notes_and_operations = {"operations": json.dumps(operations), "notes": json.dumps(dict(notes))}
    Path(path).write_bytes(encode(tensors, {"format": FORMAT, **notes_and_operations}))
