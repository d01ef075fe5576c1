"""Calls of the library, written down once and made again.

A training step makes the calls of the step before with the same arguments: memory is kept from step to step, and parameters are
changed in place. To put the arguments together and to check them takes Python a sixth of the step of a small network at high
sparsity, and the library next to nothing.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Calls = list[tuple[Callable[..., Any], tuple[Any, ...]]]


class _Recording(threading.local):
    calls: Calls | None = None


_recording = _Recording()


def call(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function of the library with the threads that torch would use, and write it down where somebody wants that."""
    if _recording.calls is not None:
        _recording.calls.append((function, arguments))
    _check(function(torch.get_num_threads(), *arguments))


@contextmanager
def recorded() -> Iterator[Calls]:
    """All calls that this thread makes meanwhile. Whoever makes them again keeps the memory they point to."""
    before, _recording.calls = _recording.calls, []
    try:
        yield _recording.calls
    finally:
        _recording.calls = before


def play(calls: Calls) -> None:
    threads = torch.get_num_threads()
    for function, arguments in calls:
        _check(function(threads, *arguments))


def _check(error: bytes | None) -> None:
    if error is not None:
        raise MemoryError(f"the sparse kernels failed: {error.decode()}")
