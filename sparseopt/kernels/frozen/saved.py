"""Engines in files: `engine.save(path)`, `so.load_engine(path)`.

One safetensors file, data alone: tensors, and in the metadata a list of operations in JSON, each a piece that the kernels run
(`saved_pieces`), one of the functions that `operations` lists or one of the modules that `saved_modules` does. Nothing of it is
code, nothing of the model's Python is needed, and nothing is believed: names, numbers, shapes and counts are checked before the
kernels see them. `writing` is the other way.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparseopt.kernels.frozen.operations import ATTRIBUTES, FUNCTIONS, METHODS, run_method
from sparseopt.kernels.frozen.saved_modules import make_module
from sparseopt.kernels.frozen.saved_pieces import read_piece, require
from sparseopt.kernels.frozen.tensorfile import DTYPES, decode

FORMAT = "sparseopt-engine-1"
MEMORY_FORMATS = {
    name: getattr(torch, name)
    for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
}


class Saved:
    """The operations of a file, which run in order."""

    def __init__(self, operations: list[dict[str, Any]], tensors: dict[str, Tensor]) -> None:
        self.operations, self.tensors = operations, tensors
        self._inputs = [each["input"] for each in operations if "input" in each]
        self._pieces = {
            number: read_piece(each, tensors)
            for number, each in enumerate(operations)
            if {"region", "chain"} & set(each)
        }
        self._modules = {
            number: make_module(
                each["module"], each["options"], {key: tensors[name] for key, name in each["state"].items()}
            )
            for number, each in enumerate(operations)
            if "module" in each
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
            try:
                values.append(self._run(number, operation, given, values))
            except (AssertionError, ArithmeticError, AttributeError, KeyError) as error:
                raise ValueError(f"operation {number} of the engine cannot run: {error}") from error
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
        if number in self._modules:
            return self._modules[number](*args, **kwargs)
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
            case "dtype":
                return DTYPES[content]
            case "device":
                return torch.device(content)
            case "memory_format":
                return MEMORY_FORMATS[content]
        return Ellipsis

    def _check(self) -> None:
        """Every operation is known, and reads what was computed before it."""
        for number, operation in enumerate(self.operations):
            known = {"input", "constant", "region", "chain", "method", "call", "module", "output"}
            require(len(known & set(operation)) == 1, f"operation {number} is none that is known")
            self._check_called(operation, number)
            arguments = [operation[each] for each in ("default", "constant", "output") if each in operation]
            arguments += [*operation.get("args", ()), *operation.get("kwargs", {}).values()]
            for each in arguments:
                self._check_value(each, number)
        require("output" in self.operations[-1], "it has no output")

    def _check_called(self, operation: dict[str, Any], number: int) -> None:
        if {"input", "constant", "output"} & set(operation):
            return
        args, kwargs = operation["args"], operation["kwargs"]
        require(isinstance(args, list) and isinstance(kwargs, dict), f"operation {number} has no arguments")
        if "call" in operation:
            require(operation["call"] in FUNCTIONS, f"operation {number} calls {operation['call']!r}")
        # It would be written to, whoever else reads the tensor: nothing that `save` writes has it.
        require("out" not in kwargs, f"operation {number} writes to a tensor")
        if operation.get("call") == "attribute":
            require(len(args) == 2 and args[1] in ATTRIBUTES, f"operation {number} reads {args[1:]!r:.80}")
        if "method" in operation:
            known = operation["method"] in METHODS and bool(args)
            require(known, f"operation {number} calls the method {operation['method']!r}")

    def _check_value(self, value: Any, number: int) -> None:
        match value:
            case {"node": int(at)} if len(value) == 1:
                require(0 <= at < number, f"operation {number} reads a value that is not there")
            case {"tensor": str(name)} if len(value) == 1:
                require(name in self.tensors, f"operation {number} reads a tensor that is not there")
            case {"slice": list(parts)} if len(parts) != 3:
                require(False, f"operation {number} has a slice of {len(parts)} numbers")
            case {"dtype": str(name)} if len(value) == 1:
                require(name in DTYPES, f"operation {number} has the dtype {name!r}")
            case {"memory_format": str(name)} if len(value) == 1:
                require(name in MEMORY_FORMATS, f"operation {number} has the memory format {name!r}")
            case {"tuple": list(parts)} | {"list": list(parts)} | {"slice": list(parts)} if len(value) == 1:
                for each in parts:
                    self._check_value(each, number)
            case {"dict": dict(parts)} if len(value) == 1:
                for each in parts.values():
                    self._check_value(each, number)
            case {"ellipsis": True} | {"device": "cpu"} if len(value) == 1:
                pass
            case None | bool() | int() | float() | str():
                pass
            case _:
                require(False, f"operation {number} has an argument that is none")


def read(path: str | Path) -> tuple[Saved, dict[str, Any]]:
    """The program and the notes of a file. Raises `ValueError` for anything that is not an engine."""
    try:
        tensors, metadata = decode(path)
    except ValueError as error:
        raise ValueError(f"{path} is not an engine: {error}") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} is no engine that this version reads, {FORMAT!r}, but {metadata.get('format')!r}; so.load(path, model) "
            "reads models, and so.load_engine what engine.save wrote"
        )
    try:
        operations, notes = json.loads(metadata["operations"]), json.loads(metadata["notes"])
        require(isinstance(operations, list) and bool(operations), "it has no operations")
        require(all(isinstance(each, dict) for each in operations), "an operation is none")
        return Saved(operations, tensors), notes
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        AssertionError,
        ArithmeticError,
    ) as error:
        raise ValueError(f"{path} is not an engine that can run: {error}") from error
