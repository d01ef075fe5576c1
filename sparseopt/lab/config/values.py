"""Settings as a command line spells them, each read as its field of `Config` wants it.

`0.9`, `rigl`, `none`, `yes`, `64x32`, `stem.*+fc.*`
"""

import types
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError, near

KINDS: dict[str, Any] = get_type_hints(Config)
"""The type of every setting."""

BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}


def setting_named(text: str, option: str) -> str:
    """The setting that an option names, with hyphens or underscores; refused, with the nearest one, if there is none."""
    name = text.strip().replace("-", "_")
    if name in KINDS:
        return name
    meant = near(name, KINDS) or f"; the settings are {', '.join(KINDS)}"
    raise UserError(f"{option} {text}: there is no setting {text!r}{meant}")


def settings_given(options: Sequence[str], option: str, what: str, example: str) -> Iterator[tuple[str, str]]:
    """The setting and the text of each NAME=TEXT; refused where one is none, or names a setting again."""
    seen: set[str] = set()
    for each in options:
        key, equals, text = each.partition("=")
        if not equals:
            raise UserError(f"{option} {each}: write a setting and its {what}, such as {example}")
        name = setting_named(key, option)
        if name in seen:
            raise UserError(f"{option} {name} is given twice; write it once, with its {what}")
        seen.add(name)
        yield name, text


def value_of(name: str, text: str, option: str) -> Any:
    """The value that a text is of this setting.

    >>> value_of("lr", "1e-2", "--grid"), value_of("hidden", "64x32", "--grid"), value_of("max_grad_norm", "none", "--grid")
    (0.01, (64, 32), None)
    >>> value_of("exclude", "stem.*+fc.*", "--grid"), value_of("exclude", "none", "--grid")
    (('stem.*', 'fc.*'), ())
    """
    for kind in options_of(KINDS[name]):
        try:
            return _read(text, kind)
        except ValueError:
            continue
    words = [
        word for kind in options_of(KINDS[name]) if get_origin(kind) is Literal for word in get_args(kind)
    ]
    raise UserError(f"{option} {name}: {text!r} is not {_in_words(KINDS[name])}{near(text, words)}")


def options_of(kind: Any) -> tuple[Any, ...]:
    """The types that a field may have: those of a union, else its only one."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def spelled(value: Any) -> str:
    """A value as a command line spells it.

    >>> [spelled(value) for value in (0.9, None, True, (64, 32), "rigl", ("stem.*", "fc.*"))]
    ['0.9', 'none', 'yes', '64x32', 'rigl', 'stem.*+fc.*']
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        words = any(isinstance(each, str) for each in value)
        return ("+" if words else "x").join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _read(text: str, kind: Any) -> Any:
    """The text as a value of one type; ValueError if it is none."""
    if get_origin(kind) is Literal:
        return get_args(kind)[get_args(kind).index(text)]
    if get_origin(kind) is tuple and str in get_args(kind):
        return () if text == "none" else tuple(text.split("+"))
    if get_origin(kind) is tuple:
        return tuple(int(width) for width in text.split("x"))
    if kind is types.NoneType:
        return _one_of({"none": None}, text)
    if kind is bool:
        return _one_of(BOOLEANS, text)
    return kind(text)


def _one_of(values: dict[str, Any], text: str) -> Any:
    if text.lower() not in values:
        raise ValueError(text)
    return values[text.lower()]


def _several(kind: Any) -> str:
    return "none, or words such as stem.*+fc.*" if str in get_args(kind) else "widths such as 64x32"


def _in_words(kind: Any) -> str:
    words = {
        int: "a whole number",
        float: "a number",
        bool: "yes or no",
        types.NoneType: "none",
        str: "a word",
    }
    parts = []
    for each in options_of(kind):
        if get_origin(each) is Literal:
            parts.append(f"one of {', '.join(get_args(each))}")
        else:
            parts.append(_several(each) if get_origin(each) is tuple else words[each])
    return " or ".join(parts)
