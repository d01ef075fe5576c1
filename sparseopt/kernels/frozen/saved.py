"""Engines in files: `engine.save(path)`, `so.load_engine(path)`.

One safetensors file, data alone: tensors, and in the metadata a list of operations in JSON, each a piece that the kernels run or
one of the functions that `operations.py` lists. Nothing of it is code, nothing of the model's Python is needed, and nothing is
believed: names, numbers, shapes and counts are checked before the kernels see them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from sparseopt.kernels.frozen.chain import FrozenChain
from sparseopt.kernels.frozen.description import Convs, ConvStep, End, Head, Linears, LinearStep, SparseWeight
from sparseopt.kernels.frozen.operations import FUNCTIONS, NAMES, as_function, passes_through, run_method
from sparseopt.kernels.frozen.pool import FrozenPool
from sparseopt.kernels.frozen.region import FrozenRegion
from sparseopt.kernels.frozen.tensorfile import decode, encode
from sparseopt.kernels.match.chains import LinearActivation
from sparseopt.topology.bits import pack, unpack

FORMAT = "sparseopt-engine-1"
LARGEST = 2**31


class Unsaved(ValueError):
    """An engine that does something a file cannot say."""


# ---- writing


@dataclass
class _Writer:
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
        return self._call(node, NAMES[function], (*node.args, *args), kwargs)

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
        steps = [
            {
                "name": step.name,
                "input": step.input,
                "weight": self._weight(step.weight),
                "bias": self.tensor(step.bias),
                "stride": step.stride,
                "padding": list(step.padding),
                "relu": step.relu,
                "shortcut": step.shortcut,
                "shortcut_stride": step.shortcut_stride,
                "shortcut_offset": step.shortcut_offset,
            }
            for step in convs.steps
        ]
        ends = [
            {
                "value": end.value,
                "pooled": end.pooled,
                "head": None if end.head is None else self._head(end.head),
            }
            for end in convs.ends
        ]
        return {"region": {"inputs": list(convs.inputs), "steps": steps, "ends": ends}}

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


def write(program: "nn.Module | Saved", notes: Mapping[str, Any], path: str | Path) -> None:
    """`notes`: what the engine says of itself, as JSON."""
    if isinstance(program, Saved):
        tensors, operations = program.tensors, program.operations
    elif not isinstance(program, GraphModule):
        raise Unsaved("torch.fx cannot trace the model, so the engine needs its Python code")
    else:
        writer = _Writer(program)
        operations, tensors = writer.write(), writer.tensors
    notes_and_operations = {"operations": json.dumps(operations), "notes": json.dumps(dict(notes))}
    Path(path).write_bytes(encode(tensors, {"format": FORMAT, **notes_and_operations}))


# ---- reading


class Saved:
    """The operations of a file, which run in order."""

    def __init__(self, operations: list[dict[str, Any]], tensors: dict[str, Tensor]) -> None:
        self.operations, self.tensors = operations, tensors
        self._inputs = [each["input"] for each in operations if "input" in each]
        self._pieces = {
            number: _piece(each, tensors)
            for number, each in enumerate(operations)
            if {"region", "chain"} & set(each)
        }
        self._check()

    def copy(self) -> "Saved":
        return Saved(self.operations, self.tensors)

    def children(self) -> list[nn.Module]:
        return list(self._pieces.values())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) > len(self._inputs) or not set(kwargs) <= set(self._inputs[len(args) :]):
            raise TypeError(
                f"the engine takes {', '.join(self._inputs)}; got {len(args)} and {sorted(kwargs)}"
            )
        given = {**dict(zip(self._inputs, args, strict=False)), **kwargs}
        values: list[Any] = []
        for number, operation in enumerate(self.operations):
            if "output" in operation:
                return self._value(operation["output"], values)
            values.append(self._run(number, operation, given, values))
        raise AssertionError("a file without an output is refused when it is read")

    def _run(self, number: int, operation: dict[str, Any], given: dict[str, Any], values: list[Any]) -> Any:
        if "input" in operation:
            name = operation["input"]
            if name not in given and "default" not in operation:
                raise TypeError(f"the engine takes {', '.join(self._inputs)}; {name!r} is missing")
            return given[name] if name in given else self._value(operation["default"], values)
        if "constant" in operation:
            return self._value(operation["constant"], values)
        args = [self._value(each, values) for each in operation["args"]]
        kwargs = {name: self._value(each, values) for name, each in operation["kwargs"].items()}
        if number in self._pieces:
            return self._pieces[number](*args)
        if "method" in operation:
            return run_method(args[0], operation["method"], *args[1:], **kwargs)
        return FUNCTIONS[operation["call"]](*args, **kwargs)

    def _value(self, value: Any, values: list[Any]) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        match kind:
            case "node":
                return values[content]
            case "tensor":
                return self.tensors[content]
            case "tuple":
                return tuple(self._value(each, values) for each in content)
            case "list":
                return [self._value(each, values) for each in content]
            case "dict":
                return {key: self._value(each, values) for key, each in content.items()}
            case "slice":
                return slice(*(self._value(each, values) for each in content))
        return Ellipsis

    def _check(self) -> None:
        """Every operation is known, and reads what was computed before it."""
        for number, operation in enumerate(self.operations):
            known = {"input", "constant", "region", "chain", "method", "call", "output"} & set(operation)
            _require(len(known) == 1, f"operation {number} is none that is known")
            if "call" in operation:
                _require(operation["call"] in FUNCTIONS, f"operation {number} calls {operation['call']!r}")
            arguments = [operation[each] for each in ("default", "constant", "output") if each in operation]
            arguments += [*operation.get("args", ()), *operation.get("kwargs", {}).values()]
            for each in arguments:
                self._check_value(each, number)
        _require("output" in self.operations[-1], "it has no output")

    def _check_value(self, value: Any, number: int) -> None:
        match value:
            case {"node": int(at)} if len(value) == 1:
                _require(0 <= at < number, f"operation {number} reads a value that is not there")
            case {"tensor": str(name)} if len(value) == 1:
                _require(name in self.tensors, f"operation {number} reads a tensor that is not there")
            case {"tuple": list(parts)} | {"list": list(parts)} | {"slice": list(parts)} if len(value) == 1:
                for each in parts:
                    self._check_value(each, number)
            case {"dict": dict(parts)} if len(value) == 1:
                for each in parts.values():
                    self._check_value(each, number)
            case {"ellipsis": True} | None | bool() | int() | float() | str():
                pass
            case _:
                _require(False, f"operation {number} has an argument that is none")


def read(path: str | Path) -> tuple[Saved, dict[str, Any]]:
    """The program and the notes of a file. Raises `ValueError` for anything that is not an engine."""
    try:
        tensors, metadata = decode(path)
    except ValueError as error:
        raise ValueError(f"{path} is not an engine: {error}") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} has format {metadata.get('format')!r}; this version reads {FORMAT!r}")
    try:
        operations, notes = json.loads(metadata["operations"]), json.loads(metadata["notes"])
        _require(isinstance(operations, list) and bool(operations), "it has no operations")
        _require(all(isinstance(each, dict) for each in operations), "an operation is none")
        return Saved(operations, tensors), notes
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"{path} is not an engine that can run: {error}") from error


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _piece(operation: dict[str, Any], tensors: Mapping[str, Tensor]) -> FrozenRegion | FrozenChain:
    reader = _Reader(tensors)
    if "region" in operation:
        return FrozenRegion(reader.convs(operation["region"]))
    return FrozenChain(reader.linears(operation["chain"]))


@dataclass
class _Reader:
    tensors: Mapping[str, Tensor]

    def floats(self, name: str, size: int) -> Tensor:
        tensor = self.tensors[name]
        fits = tensor.dtype == torch.float32 and tuple(tensor.shape) == (size,)
        _require(fits, f"{name!r} is not {size} numbers of float32")
        return tensor.contiguous()

    def weight(self, saved: dict[str, Any], axes: int) -> SparseWeight:
        shape = tuple(_integer(each, 1, LARGEST) for each in saved["shape"])
        _require(len(shape) == axes and torch.Size(shape).numel() < LARGEST, f"a weight of shape {shape}")
        mask = self.tensors[saved["mask"]]
        size = -(-torch.Size(shape).numel() // 8)
        _require(
            mask.dtype == torch.uint8 and tuple(mask.shape) == (size,), f"a mask that does not fit {shape}"
        )
        position = unpack(mask, shape).flatten().nonzero().squeeze(1).int()
        return SparseWeight(shape, position, self.floats(saved["values"], len(position)))

    def convs(self, saved: dict[str, Any]) -> Convs:
        inputs = tuple(_integer(each, 1, LARGEST) for each in saved["inputs"])
        channels, steps = list(inputs), []
        for each in saved["steps"]:
            steps.append(self.step(each, channels))
            channels.append(steps[-1].channels)
        ends = tuple(self.end(each, channels) for each in saved["ends"])
        _require(bool(inputs and steps and ends), "a region without inputs, steps or outputs")
        return Convs(inputs, tuple(steps), ends)

    def step(self, saved: dict[str, Any], channels: list[int]) -> ConvStep:
        weight, shortcut = self.weight(saved["weight"], 4), saved["shortcut"]
        source = _integer(saved["input"], 0, len(channels))
        _require(weight.shape[1] == channels[source], "a convolution of other channels than it reads")
        padding = tuple(
            _integer(each, 0, kernel) for each, kernel in zip(saved["padding"], weight.shape[2:], strict=True)
        )
        offset = _integer(saved["shortcut_offset"], 0, weight.shape[0])
        if shortcut is not None:
            added = channels[_integer(shortcut, 0, len(channels))]
            _require(offset + added <= weight.shape[0], "a sum of more channels than there are")
        return ConvStep(
            *(
                _text(saved["name"]),
                source,
                len(channels),
                weight,
                self.floats(saved["bias"], weight.shape[0]),
            ),
            *(_integer(saved["stride"], 1, 3), (padding[0], padding[1]), _flag(saved["relu"]), shortcut),
            *(_integer(saved["shortcut_stride"], 1, 3), offset),
        )

    def end(self, saved: dict[str, Any], channels: list[int]) -> End:
        value, head = _integer(saved["value"], 0, len(channels)), saved["head"]
        if head is None:
            return End(value, _flag(saved["pooled"]))
        weight = self.weight(head["weight"], 2)
        _require(weight.shape[1] == channels[value], "a linear layer of other features than it reads")
        bias = self.floats(head["bias"], weight.shape[0])
        return End(value, True, Head(_text(head["name"]) or "", weight, bias))

    def linears(self, saved: dict[str, Any]) -> Linears:
        steps = []
        for each in saved["steps"]:
            weight = self.weight(each["weight"], 2)
            fits = not steps or weight.shape[1] == steps[-1].weight.shape[0]
            _require(fits, "linear layers that do not fit one another")
            bias = self.floats(each["bias"], weight.shape[0])
            steps.append(LinearStep(_text(each["name"]) or "", weight, bias, _activation(each["activation"])))
        _require(bool(steps), "a chain without layers")
        return Linears(tuple(steps), _flag(saved["flat"]))


def _integer(value: Any, least: int, below: int) -> int:
    fits = type(value) is int and least <= value < below
    _require(fits, f"{value!r} is not a number from {least} to {below - 1}")
    return value


def _activation(value: Any) -> LinearActivation:
    _require(
        value in LinearActivation.__members__,
        f"{value!r} is none of {', '.join(LinearActivation.__members__)}",
    )
    return LinearActivation[value]


def _flag(value: Any) -> bool:
    _require(type(value) is bool, f"{value!r} is neither true nor false")
    return value


def _text(value: Any) -> str | None:
    _require(value is None or isinstance(value, str), f"{value!r} is not a name")
    return value
