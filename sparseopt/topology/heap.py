"""Memory that is free and that the C library keeps: the holes that an update of the masks leaves between what stays."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any


def give_back() -> None:
    """Return the holes to the system, which glibc can do; elsewhere, nothing."""
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], Any] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return None
