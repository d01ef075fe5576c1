"""What goes wrong in the lab and can be set right by the person at the keyboard."""

import difflib
from collections.abc import Iterable

INTERRUPTED = 130
"""The exit code that shells report for a process ended by Ctrl-C: 128 + SIGINT."""


class UserError(Exception):
    """What the person at the keyboard can set right: one line that names the remedy, and the exit code."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DiskFull(UserError):
    """There is no room for a file."""


def require(holds: bool, option: str, value: object, expected: str) -> None:
    """Refuse a setting that cannot be, by the name it has on the command line.

    >>> require(False, "batch_size", 0, "at least 1")
    Traceback (most recent call last):
    sparseopt.lab.errors.UserError: --batch-size must be at least 1, got 0
    """
    if not holds:
        raise UserError(f"--{option.replace('_', '-')} must be {expected}, got {value}")


def require_positive(settings: object, *options: str) -> None:
    """Refuse counts below 1."""
    for option in options:
        value = getattr(settings, option)
        require(value >= 1, option, value, "at least 1")


def near(name: str, known: Iterable[str]) -> str:
    """A question about the name that comes closest, if one comes close.

    >>> near("globl", ["layer", "global"]), near("xyz", ["layer", "global"])
    (' (did you mean global?)', '')
    """
    closest = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {closest[0]}?)" if closest else ""
