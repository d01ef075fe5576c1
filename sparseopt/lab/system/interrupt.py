"""Ctrl-C and SIGTERM as a request: stop after this step, and save first."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # a person at the keyboard, and a cluster that wants its node back


class StopRequest:
    """`made` is True from the first signal on; a second signal interrupts at once.

    A request that listens inside another's block passes on what it got: a run that ends just then has nothing left to stop, but
    the sweep it is part of has.
    """

    def __init__(self) -> None:
        self.made = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take note of signals inside the block. Only the main thread can; in others nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
                outer = getattr(handler, "__self__", None)
                if self.made and isinstance(outer, StopRequest):
                    outer.made = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.made:
            raise KeyboardInterrupt
        self.made = True
