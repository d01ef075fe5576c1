"""Shell completion: what can be typed after each command, read from the same typed functions that tyro parses.

`parse` is where every command hands over its function. While options are collected it does not parse: it raises `OptionsFound`
with the options of that function.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

Options = dict[str, list[str]]
"""The words behind each option, as far as they are known."""

_collecting: ContextVar[bool] = ContextVar("collecting", default=False)


class OptionsFound(BaseException):
    """Not an error: what was asked for, on its way up through a command."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options


@contextmanager
def collecting() -> Iterator[None]:
    """Within the block, `hand_over` raises what it is given."""
    token = _collecting.set(True)
    try:
        yield
    finally:
        _collecting.reset(token)


def hand_over(function: Callable[..., Any]) -> None:
    """Called before a line is parsed for this function."""
    if _collecting.get():
        raise OptionsFound(options_of(function))


def options_of(function: Callable[..., Any]) -> Options:
    """The options of a command: its parameters, and the fields of those that are dataclasses.

    >>> def command(method: Literal["set", "rigl"] = "set", ham: bool = False, max_norm: float = 1.0) -> None: ...
    >>> options_of(command)
    {'--method': ['set', 'rigl'], '--ham': [], '--no-ham': [], '--max-norm': []}
    """
    hints = get_type_hints(function, include_extras=True)
    found: Options = {}
    for name in inspect.signature(function).parameters:
        found |= _options(name, hints.get(name))
    return found


def _options(name: str, kind: Any) -> Options:
    marks = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    if tyro.conf.Positional in marks:
        return {}
    if marks:
        kind = get_args(kind)[0]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        inner = (_options(field.name, hints[field.name]) for field in dataclasses.fields(kind))
        return {option: words for each in inner for option, words in each.items()}
    flag = "--" + name.replace("_", "-")
    aliases = [each for mark in marks for each in getattr(mark, "aliases", None) or ()]
    if kind is bool:
        single = tyro.conf.FlagCreatePairsOff in marks
        return {flag: []} if single else {flag: [], "--no-" + flag[2:]: []}
    return dict.fromkeys([flag, *aliases], _words(kind))


def _words(kind: Any) -> list[str]:
    """The values that a type names."""
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return [word for each in get_args(kind) if each is not Ellipsis for word in _words(each)]


def bash(lines: Mapping[str, Options]) -> str:
    """A script for bash, and for zsh with bashcompinit: words after `sparseopt`, by those before them ("train", ...)."""
    cases = "\n".join(_case(words, options) for words, options in lines.items())
    commands = " ".join(dict.fromkeys(line.split()[0] for line in lines))
    return f"""# completion of sparseopt for bash; in zsh: autoload -U bashcompinit && bashcompinit first
_sparseopt() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" name="" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{commands} --help --version" -- "$word"))
    return
  fi
  if [ "$COMP_CWORD" -gt 2 ]; then name="${{COMP_WORDS[2]}}"; fi
  case "${{COMP_WORDS[1]}} $name" in
{cases}
  esac
  if [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  fi
  if [ -z "$COMPREPLY" ] && [[ "$word" != -* ]]; then
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _sparseopt sparseopt
"""


def _case(line: str, options: Options) -> str:
    named = [f'      {option}) words="{" ".join(words)}" ;;' for option, words in options.items() if words]
    first, *rest = line.split()
    pattern = f'"{first} {rest[0]}"' if rest else f'"{first} "*'
    flags = " ".join(["--help", "--debug", *(option for option in options if option.startswith("--"))])
    names = " ".join(option for option in options if not option.startswith("--"))
    return "\n".join(
        [
            f"    {pattern})",
            '      case "$before" in',
            *named,
            f'      *) if [ "$COMP_CWORD" -eq 2 ]; then words="{names} {flags}"; else words="{flags}"; fi ;;',
            "      esac ;;",
        ]
    )
