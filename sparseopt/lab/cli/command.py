"""One way for every command to read its options and to fail.

A command is a typed function. `run` lets tyro turn the command line into its parameters, calls it, and translates what goes
wrong: a `UserError` becomes `sparseopt NAME: message` with its exit code, Ctrl-C becomes 130, and only `--debug` shows a
traceback. A line that cannot be parsed is answered by tyro itself, with the options that come closest, and exit code 2.
"""

import functools
import inspect
import logging
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from typing import Annotated, Any, get_type_hints

import tyro

from sparseopt.lab.cli.completion import hand_over
from sparseopt.lab.errors import INTERRUPTED, UserError
from sparseopt.lab.show.words import printable

UNUSABLE = 2  # what a `UserError` ends with
PIPE_CLOSED = 141  # 128 + SIGPIPE

debugging: ContextVar[bool] = ContextVar("debugging", default=False)  # has the command been given --debug?

Debug = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="Show the traceback of an error.")]


def run(prog: str, function: Callable[..., int | None], argv: list[str]) -> int:
    """Call `function` with the parameters that `argv` spells; the exit code of the command `prog`."""
    return report(prog, lambda: parse(prog, function, argv)())


def report(prog: str, call: Callable[[], int | None]) -> int:
    """Make the call; tell what goes wrong in one line, and return the exit code."""
    debugging.set(False)
    shown = logging.StreamHandler()
    shown.setFormatter(_Printable(f"{prog}: %(message)s"))
    logging.basicConfig(handlers=[shown], level=logging.WARNING)
    try:
        code = call() or 0
        sys.stdout.flush()
        return code
    except (UserError, KeyboardInterrupt) as error:
        if debugging.get():
            traceback.print_exc()
        sys.stderr.write(f"{prog}: {printable(str(error)) or 'interrupted'}\n")
        return error.exit_code if isinstance(error, UserError) else INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        if debugging.get():
            traceback.print_exc()
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(printable(f"{prog}: {where}{error.strerror or error}\n"))
        return UNUSABLE
    except SystemExit as stop:  # tyro's way to say that --help has been answered, or that it could not parse
        return stop.code if isinstance(stop.code, int) else 0


class _Printable(logging.Formatter):
    """Messages name folders, and anybody may have named those."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def parse(prog: str, function: Callable[..., int | None], argv: list[str]) -> Callable[[], int | None]:
    """The call that `argv` asks for, ready to be made."""
    hand_over(function)
    about = _about(inspect.getdoc(function) or "")
    return tyro.cli(
        _deferred(function), prog=prog, description=about, args=argv, config=(tyro.conf.OmitArgPrefixes,)
    )


def _about(doc: str) -> str:
    """What stands above the options, in lines that the terminal does not have to break. They are indented because tyro joins
    lines that begin with a letter."""
    text = " ".join(doc.partition("\n\nArgs:")[0].split())
    return textwrap.fill(text, shutil.get_terminal_size().columns, subsequent_indent="  ")


def _deferred(function: Callable[..., int | None]) -> Callable[..., Callable[[], int | None]]:
    """`function` with one more parameter, `debug`, that returns the call instead of making it."""

    def defer(*args: Any, debug: bool = False, **kwargs: Any) -> Callable[[], int | None]:
        debugging.set(debug)
        return functools.partial(function, *args, **kwargs)

    signature = inspect.signature(function)
    option = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    parameters = [*signature.parameters.values(), option]
    defer.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    defer.__annotations__ = {**get_type_hints(function, include_extras=True), "debug": Debug}
    doc = inspect.getdoc(function) or ""
    defer.__doc__ = re.sub(r"\n {8,}", " ", doc)  # tyro would keep the source's line breaks
    return defer
