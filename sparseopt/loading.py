"""Ctrl-C while the `sparseopt` command loads ends it, without a traceback from the middle of torch's import."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT end the process inside the block, if that is the command being loaded; nothing else in a user's program."""
    is_command = sys.argv[:1] == ["-m"] or (sys.argv and os.path.basename(sys.argv[0]) == "sparseopt")
    usual = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not (is_command and usual):
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
