"""Messages from workers to the process that started them, each through its own pipe: a dead worker leaves no lock taken."""

import contextlib
import logging
from dataclasses import dataclass
from multiprocessing.connection import Connection


@dataclass(frozen=True)
class Logged:
    """A line for the log."""

    level: int
    text: str


@dataclass(frozen=True)
class Refused:
    """A run that could not be trained, and why; it waits in the study."""

    run: str
    reason: str


@dataclass(frozen=True)
class CannotWork:
    """Why a worker ends that has trials left: nothing can be trained with this."""

    reason: str


Message = Logged | Refused | CannotWork


class Sender(logging.Handler):
    """A worker's end: messages, and all that it logs."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe

    def send(self, message: Message) -> None:
        with (
            contextlib.suppress(OSError),
            self.lock or contextlib.nullcontext(),
        ):  # nobody may be there to hear it
            self._pipe.send(message)

    def emit(self, record: logging.LogRecord) -> None:
        self.send(Logged(record.levelno, self.format(record)))
