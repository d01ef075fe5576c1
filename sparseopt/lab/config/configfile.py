"""`--config run/config.json`: repeat a run from its record.

The record may come from anywhere, so it is checked like a command line: it can hold the fields of a
configuration and nothing else, each of its own type. None of them is a path.
"""

import dataclasses
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sparseopt.lab.config.recipes import Config
from sparseopt.lab.config.values import options_of
from sparseopt.lab.errors import UserError
from sparseopt.lab.system.files import read_json


def read_config(path: str | Path) -> Config:
    """The configuration in a run's config.json."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; name the config.json of a run, such as {path / 'config.json'}")
    values = read_json(path).get("config")
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no configuration; name the config.json of a run")
    return checked_config(values, path)


def checked_config(values: dict[str, Any], path: Path) -> Config:
    """The configuration that these settings make up; `path` says in what file they were found."""
    kinds = get_type_hints(Config)
    for name, value in values.items():
        if name not in kinds:
            raise UserError(f"{path} has a setting {name!r} that does not exist; remove it")
        if not fits(value, kinds[name]):
            raise UserError(f"{path}: {name} cannot be {value!r}; {_expected(kinds[name])} is expected")
    missing = [
        field.name for field in dataclasses.fields(Config) if _needed(field) and field.name not in values
    ]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}; add them, or start from a recipe")
    return Config(**{name: _as_field(value, kinds[name]) for name, value in values.items()})


def _as_field(value: Any, kind: Any) -> Any:
    """A JSON value as the field has it: `1` and `1.0` are one number, and one experiment."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if type(value) is int and float in options_of(kind) else value


def fits(value: Any, kind: Any) -> bool:
    """Is a JSON value one of this type?

    >>> fits("rigl", Literal["set", "rigl"]), fits(1, float | None), fits(True, int), fits([3, "a"], tuple[int, ...])
    (True, True, False, False)
    """
    origin, options = get_origin(kind), get_args(kind)
    if origin is Literal:
        return isinstance(value, str) and value in options
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in options)
    if origin is tuple:
        return isinstance(value, list) and all(fits(each, options[0]) for each in value)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING


def _expected(kind: Any) -> str:
    return " or ".join(map(str, get_args(kind))) if get_origin(kind) is Literal else str(kind)
