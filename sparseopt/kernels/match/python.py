"""Which modules may be traced: those whose `forward` depends on nothing but its arguments and on what can be compared.

A trace runs the Python of `forward` once and never again. That is right where a second run would do the same: where it reads
constants, torch's functions, and attributes that have not changed since. So the bytecode of `forward`, and of the functions and
methods it calls, is read before anything is traced: whatever it stores, imports, catches or draws at random, and every object it
reads that may change unseen, makes the module one that is called as it is written. Attributes that are plain values may be read:
they become guards, compared before every call.

Attributes are looked up by name in all modules below, because bytecode does not say whose attribute it is: that may refuse too
much, and never too little.
"""

import builtins
import dis
import functools
import inspect
import math
import operator
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._jit_internal import is_scripting
from torch.jit._trace import is_tracing

MISSING = object()
VALUES = (
    *(type(None), bool, int, float, complex, str, bytes, type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
HARMLESS = frozenset(
    getattr(builtins, name)
    for name in (
        *(
            "abs",
            "all",
            "any",
            "bool",
            "dict",
            "divmod",
            "enumerate",
            "filter",
            "float",
            "frozenset",
            "int",
            "len",
        ),
        *(
            "list",
            "map",
            "max",
            "min",
            "pow",
            "range",
            "reversed",
            "round",
            "set",
            "slice",
            "sorted",
            "str",
            "sum",
        ),
        *("super", "tuple", "zip", "NotImplementedError", "ValueError", "RuntimeError", "TypeError"),
        "AssertionError",
    )
)
TYPES = frozenset({torch.Size, torch.dtype, torch.device, torch.memory_format})
READS_MODULES = frozenset({"children", "named_children", "modules", "named_modules"})
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
OVERRIDDEN = ("__call__", "__getattr__", "__getattribute__", "__setattr__", "__iter__")

STATEMENTS = {
    "STORE_ATTR": "sets attributes",
    "DELETE_ATTR": "deletes attributes",
    "STORE_GLOBAL": "sets global names",
    "DELETE_GLOBAL": "deletes global names",
    "STORE_SUBSCR": "assigns to items",
    "STORE_SLICE": "assigns to items",
    "DELETE_SUBSCR": "deletes items",
    "IMPORT_NAME": "imports",
    "LOAD_NAME": "reads names that are found at run time",
    "LOAD_LOCALS": "reads names that are found at run time",
    "LOAD_BUILD_CLASS": "defines a class",
    "BEFORE_WITH": "has a with statement",
    "LOAD_SPECIAL": "has a with statement",
    "PUSH_EXC_INFO": "catches exceptions",
    "GET_AWAITABLE": "awaits",
    "MATCH_SEQUENCE": "asks of which kind a value is",
    "MATCH_MAPPING": "asks of which kind a value is",
    "MATCH_CLASS": "asks of which kind a value is",
}


class Guard(NamedTuple):
    """What a mapping held under a name when the trace was made, and the module whose Python reads it."""

    mapping: Mapping[str, Any]
    name: str
    value: Any
    reader: nn.Module

    def holds(self) -> bool:
        now, before = self.mapping.get(self.name, MISSING), self.value
        return now is before or (
            type(now) is type(before) and isinstance(now, (*VALUES, tuple)) and now == before
        )


class Unprovable(Exception):
    """Why a module is called as it is written."""


class Proof:
    """What the Python of a module's `forward` depends on. Raises `Unprovable` if it cannot be told or compared."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.guards: list[Guard] = []
        self._below = list(module.modules())
        self._read: set[FunctionType | CodeType] = set()
        self._names: set[str] = set()
        check_class(module)
        self._function(type(module).forward, method=True)

    def _function(self, function: Any, *, method: bool = False) -> None:
        if not isinstance(function, FunctionType):
            raise Unprovable(f"calls {_name(function)}, whose Python cannot be read")
        if function in self._read:
            return
        self._read.add(function)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._value(f"a default of {function.__name__}", default)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self._code(function.__code__, function.__globals__, cells, method=method)

    def _code(
        self, code: CodeType, names: Mapping[str, Any], cells: Mapping[str, Any], *, method: bool
    ) -> None:
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR) and (
            code.co_name != "<genexpr>"
        ):
            raise Unprovable(f"{code.co_name} is a generator")
        reader = _PythonReader(
            self, code, names, cells, code.co_varnames[0] if method and code.co_argcount else None
        )
        reader.read()
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant, names, cells, method=False)

    def attribute(self, name: str) -> None:
        """A name that is read from some object: whatever it means in one of the modules below must be known."""
        if name.startswith("__"):
            raise Unprovable(f"reads {name}")
        if name in self._names:
            return
        self._names.add(name)
        for module in self._below:
            self._attribute_of(module, name)

    def _attribute_of(self, module: nn.Module, name: str) -> None:
        if (
            name == "training"
            or name in module._modules
            or name in module._parameters
            or name in module._buffers
        ):
            return  # modes and structure are compared elsewhere
        value = module.__dict__.get(name, MISSING)
        if value is not MISSING:
            self._value(f"{type(module).__name__}.{name}", value)
            self.guards.append(Guard(module.__dict__, name, value, self.module))
            return
        for owner in type(module).__mro__:
            if name in owner.__dict__:
                self._class_attribute(owner, name, module)

    def _class_attribute(self, owner: type, name: str, module: nn.Module) -> None:
        if is_torchs(owner):
            known = name == "forward" or hasattr(Tensor, name) or name in READS_MODULES
            if not known and not issubclass(owner, CONTAINERS):
                raise Unprovable(f"calls {owner.__name__}.{name}")
            return
        value = owner.__dict__[name]
        match value:
            case property():
                self._function(value.fget, method=True)
            case staticmethod():
                self._function(value.__func__)
            case classmethod():
                raise Unprovable(f"calls the class method {name}")
            case FunctionType():
                self._function(value, method=True)
            case _:
                self._value(f"{owner.__name__}.{name}", value)
        self.guards.append(Guard(owner.__dict__, name, value, self.module))
        self.guards.append(Guard(module.__dict__, name, MISSING, self.module))

    def _value(self, name: str, value: Any) -> None:
        """Something that is read: a plain value, a tensor that takes part as it is, or a function that may be called."""
        if isinstance(value, (*VALUES, Tensor)) or is_pure(value):
            return
        if isinstance(value, tuple):
            for each in value:
                self._value(name, each)
        elif isinstance(value, FunctionType):
            self._function(value)
        else:
            raise Unprovable(f"reads {name}, a {_name(type(value))} that may change unseen")

    def named(self, names: Mapping[str, Any], name: str, value: Any, chain: str) -> None:
        """A global name, or what a chain of attributes that starts with it leads to."""
        if isinstance(value, ModuleType):
            raise Unprovable(f"uses the module {chain} as a value")
        self._value(chain, value)
        if chain == name and not isinstance(value, type):
            self.guards.append(Guard(names, name, value, self.module))


class _PythonReader:
    """Reads the instructions of one function. `owner` is the name of its `self`, if it is a method."""

    def __init__(
        self,
        proof: Proof,
        code: CodeType,
        names: Mapping[str, Any],
        cells: Mapping[str, Any],
        owner: str | None,
    ) -> None:
        self.proof, self.code, self.names, self.cells, self.owner = proof, code, names, cells, owner
        self.instructions = [
            each for each in dis.get_instructions(code) if each.opname not in ("EXTENDED_ARG", "CACHE", "NOP")
        ]

    def read(self) -> None:
        at = 0
        while at < len(self.instructions):
            at = self._instruction(at)

    def _instruction(self, at: int) -> int:
        """Reads one instruction, or a chain that starts with a global name; returns where to go on."""
        step = self.instructions[at]
        if step.opname in STATEMENTS:
            raise Unprovable(STATEMENTS[step.opname])
        if step.opname == "LOAD_GLOBAL":
            return self._chain(at, *self._global(step.argval))
        if step.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
            if step.argval in self.cells and step.argval != "__class__":
                return self._chain(at, *self._cell(step.argval))
        elif step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in self.code.co_freevars:
            raise Unprovable("sets names of the function around it")
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            self.proof.attribute(step.argval)
        elif step.opname == "IS_OP" or step.opname.endswith(("_IF_NONE", "_IF_NOT_NONE")):
            self._identity(at)
        return at + 1

    def _global(self, name: str) -> tuple[Mapping[str, Any], str, Any]:
        for names in (self.names, vars(builtins)):
            if name in names:
                return names, name, names[name]
        raise Unprovable(f"reads {name}, which is not defined")

    def _cell(self, name: str) -> tuple[Mapping[str, Any], str, Any]:
        try:
            return _Cell(self.cells[name]), name, self.cells[name].cell_contents
        except ValueError:
            raise Unprovable(f"reads {name}, which is not defined") from None

    def _chain(self, at: int, names: Mapping[str, Any], name: str, value: Any) -> int:
        """Follow attributes of modules, as in torch.nn.functional.relu."""
        chain, at = name, at + 1
        while isinstance(value, ModuleType) and self.instructions[at].opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attribute = self.instructions[at].argval
            if not is_known(value):
                raise Unprovable(f"uses {chain}.{attribute}")
            value, chain, at = getattr(value, attribute, MISSING), f"{chain}.{attribute}", at + 1
        self.proof.named(names, name, value, chain)
        return at

    def _identity(self, at: int) -> None:
        """`is` sees a value of a trace and not what it stands for: only attributes of modules may be compared."""
        before = self.instructions[:at]
        if before and before[-1].opname == "LOAD_CONST" and self.instructions[at].opname == "IS_OP":
            before = before[:-1]
        attribute = len(before) > 1 and before[-1].opname == "LOAD_ATTR"
        if not (attribute and self.owner is not None and _loads(before[-2], self.owner)):
            raise Unprovable("asks whether a value is None, or another value")


class _Cell(Mapping[str, Any]):
    """The content of a variable of the function around, under whatever name."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def __getitem__(self, name: str) -> Any:
        return self.cell.cell_contents

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1


def check_class(module: nn.Module) -> None:
    """A module that changes what calling it or reading its attributes means is called as it is written."""
    for owner in type(module).__mro__:
        if not is_torchs(owner):
            for name in OVERRIDDEN:
                if name in owner.__dict__:
                    raise Unprovable(f"{owner.__name__} has a {name} of its own")


def is_torchs(owner: type) -> bool:
    return owner is object or owner.__module__.partition(".")[0] == "torch"


def is_known(module: ModuleType) -> bool:
    """Modules whose functions depend on their arguments alone, but for those that `is_pure` leaves out."""
    return module in (math, operator) or module.__name__.partition(".")[0] == "torch"


@functools.cache
def _overridable() -> frozenset[Any]:
    return frozenset(
        each for functions in torch.overrides.get_overridable_functions().values() for each in functions
    )


def is_pure(value: Any) -> bool:
    """Functions that give the same for the same arguments, or that are seen in a trace."""
    try:
        if value in HARMLESS or value in TYPES or value in (is_scripting, is_tracing, torch._assert):
            return True
        if value in _overridable():
            return True
    except TypeError:  # cannot be hashed
        return False
    name, module = getattr(value, "__name__", ""), getattr(value, "__module__", None)
    if module in ("math", "_operator") or module == "torch.nn.functional":
        return True
    seen = isinstance(value, (BuiltinFunctionType, MethodDescriptorType)) and name.endswith(("_like", "_"))
    return seen and hasattr(torch, name)


def _loads(step: dis.Instruction, name: str) -> bool:
    """Does the instruction load this local name last?"""
    found = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
    return found == name and ("LOAD_FAST" in step.opname or step.opname == "LOAD_DEREF")


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", None) or repr(value)
