"""A sign of life on a terminal while something takes its time; nothing at all where nobody watches."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import TextIO

FRAMES = "|/-\\"
SECONDS_A_FRAME = 0.1
CLEAR_LINE = "\r\033[K"


@contextmanager
def spinner(text: str, stream: TextIO | None = None) -> Iterator[None]:
    """Turn beside the text, with the seconds that have passed, until the block is left."""
    stream = sys.stderr if stream is None else stream
    if stream is None or not stream.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_spin, args=(text, stream, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _spin(text: str, stream: TextIO, done: threading.Event) -> None:
    start = time.monotonic()
    for frame in cycle(FRAMES):
        stream.write(f"{CLEAR_LINE}{frame} {text}, {time.monotonic() - start:.0f} s")
        stream.flush()
        if done.wait(SECONDS_A_FRAME):
            break
    stream.write(CLEAR_LINE)
    stream.flush()
