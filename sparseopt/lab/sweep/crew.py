"""The worker processes of one command: started, supervised, replaced when they die, stopped together."""

import contextlib
import logging
import multiprocessing
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from sparseopt.lab.errors import INTERRUPTED, UserError
from sparseopt.lab.sweep.job import Job, worker_name
from sparseopt.lab.sweep.messages import CannotWork, Logged, Message, Refused
from sparseopt.lab.sweep.worker import CANNOT_WORK, work
from sparseopt.lab.training.place import Place

log = logging.getLogger(__name__)

ORDERLY = (0, INTERRUPTED, CANNOT_WORK, -signal.SIGTERM)  # the last: asked to stop while it was starting
MOST_STILLBORN = 3

Left = Callable[[str, bool], bool]
"""Called with the name of a worker that has ended, and whether it died: releases its trial, and returns whether it had one."""


@dataclass
class _Member:
    process: SpawnProcess
    pipe: Connection
    name: str
    number: int
    gone: bool = False


class Crew:
    """Worker processes, one for each place."""

    def __init__(self, job: Job, size: int, left: Left) -> None:
        self._job, self._left = job, left
        self._places = [place_of(job.place, number, size) for number in range(size)]
        self._members: list[_Member] = []
        self._stillborn = 0
        self.refused: dict[str, str] = {}
        """Runs that could not be trained, and why."""

    @contextlib.contextmanager
    def working(self) -> Iterator["Crew"]:
        """Start them; however the block ends, none is left."""
        try:
            for number in range(len(self._places)):
                self._start(number)
            yield self
        finally:
            self._stop()

    @property
    def at_work(self) -> bool:
        return any(not member.gone for member in self._members)

    def tend(self, seconds: float) -> None:
        """Listen to the workers for about this long; replace those that died."""
        present = [member for member in self._members if not member.gone]
        sources = [source for member in present for source in (member.pipe, member.process.sentinel)]
        ready = wait(sources, timeout=seconds)
        for member in present:
            if member.pipe in ready:
                self._listen(member)
            if member.process.sentinel in ready:
                self._part_with(member)
                if member.process.exitcode not in ORDERLY:
                    self._start(member.number)

    def _start(self, number: int) -> None:
        # Forking a process that has used torch's threads can hang.
        context = multiprocessing.get_context("spawn")
        here, there = multiprocessing.Pipe(duplex=False)
        token = secrets.token_hex(4)
        job = replace(self._job, place=self._places[number])
        process = context.Process(
            target=work, args=(job, token, there), name=f"sparseopt worker {number + 1}"
        )
        process.start()
        there.close()
        name = worker_name(process.pid or 0, token)
        self._members.append(_Member(process, here, name, number))  # pyright: ignore[reportArgumentType] - not on Windows

    def _part_with(self, member: _Member) -> None:
        member.process.join()
        self._listen(member)
        member.pipe.close()
        member.gone = True
        code = member.process.exitcode or 0
        died = code not in ORDERLY
        had_trial = self._left(member.name, died)
        if died:
            log.warning("worker %d died (%s); another one takes its place", member.number + 1, _cause(code))
            self._stillborn = 0 if had_trial else self._stillborn + 1
            if self._stillborn > MOST_STILLBORN:
                raise UserError(
                    f"workers die before they can begin ({_cause(code)}); try --workers 1, or --debug"
                )

    def _listen(self, member: _Member) -> None:
        """Read what a worker has said; one that was killed may have stopped in the middle of a word."""
        with contextlib.suppress(EOFError, OSError):
            while member.pipe.poll():
                self._heed(member, member.pipe.recv())

    def _heed(self, member: _Member, message: Message) -> None:
        match message:
            case Logged(level, text):
                log.log(level, "worker %d: %s", member.number + 1, text)
            case Refused(run, reason):
                self.refused[run] = reason
            case CannotWork(reason):
                raise UserError(reason)

    def _stop(self) -> None:
        """Ask all to save and stop, and wait for them; a second Ctrl-C asks them to stop at once."""
        self._signal()
        while self.at_work:
            try:
                for member in self._members:
                    if not member.gone:
                        member.process.join()
                        self._part_with(member)
            except KeyboardInterrupt:
                self._signal()
            except UserError as error:  # the database is away; others will see that nobody works on it
                log.warning("%s", error)

    def _signal(self) -> None:
        for member in self._members:
            if not member.gone and member.process.is_alive() and member.process.pid is not None:
                os.kill(member.process.pid, signal.SIGTERM)


def place_of(place: Place, number: int, size: int) -> Place:
    """A worker's share of the machine: of its cores, and of its GPUs one, unless the person has said what each gets."""
    threads, device = place.threads, place.device
    if threads is None and size > 1:
        threads = max(1, len(os.sched_getaffinity(0)) // size)
    if device in ("auto", "cuda") and torch.cuda.device_count() > 1:
        device = f"cuda:{number % torch.cuda.device_count()}"
    return replace(place, threads=threads, device=device)


def _cause(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
