"""Engines in files: `engine.save(path)`, `so.load_engine(path)`.

One safetensors file, data alone: tensors, and in the metadata a list of operations in JSON, each a piece that the kernels run
(`saved_pieces`) or one of the functions that `operations` lists. Nothing of it is code, nothing of the model's Python is needed,
and nothing is believed: names, numbers, shapes and counts are checked before the kernels see them. `writing` is the other way.
"""

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sparseopt.kernels.frozen.operations import FUNCTIONS, run_method
from sparseopt.kernels.frozen.saved_pieces import read_piece, require
from sparseopt.kernels.frozen.tensorfile import decode

FORMAT = "sparseopt-engine-1"


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
            require(len(known) == 1, f"operation {number} is none that is known")
            if "call" in operation:
                require(operation["call"] in FUNCTIONS, f"operation {number} calls {operation['call']!r}")
            arguments = [operation[each] for each in ("default", "constant", "output") if each in operation]
            arguments += [*operation.get("args", ()), *operation.get("kwargs", {}).values()]
            for each in arguments:
                self._check_value(each, number)
        require("output" in self.operations[-1], "it has no output")

    def _check_value(self, value: Any, number: int) -> None:
        match value:
            case {"node": int(at)} if len(value) == 1:
                require(0 <= at < number, f"operation {number} reads a value that is not there")
            case {"tensor": str(name)} if len(value) == 1:
                require(name in self.tensors, f"operation {number} reads a tensor that is not there")
            case {"tuple": list(parts)} | {"list": list(parts)} | {"slice": list(parts)} if len(value) == 1:
                for each in parts:
                    self._check_value(each, number)
            case {"dict": dict(parts)} if len(value) == 1:
                for each in parts.values():
                    self._check_value(each, number)
            case {"ellipsis": True} | None | bool() | int() | float() | str():
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
        raise ValueError(f"{path} has format {metadata.get('format')!r}; this version reads {FORMAT!r}")
    try:
        operations, notes = json.loads(metadata["operations"]), json.loads(metadata["notes"])
        require(isinstance(operations, list) and bool(operations), "it has no operations")
        require(all(isinstance(each, dict) for each in operations), "an operation is none")
        return Saved(operations, tensors), notes
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"{path} is not an engine that can run: {error}") from error
