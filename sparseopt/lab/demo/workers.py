"""Jobs on worker processes of one thread each: for networks this small, two processes beat two threads."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from sparseopt.lab.errors import UserError

Job = Callable[[], Any]


def run_all(jobs: Sequence[Job], workers: int) -> Iterator[tuple[int, Any]]:
    """Run the jobs, started in their order, and yield (index, result) as they are done.

    Ctrl-C, an error in a job, or an abandoned iterator ends the workers.
    """
    context = multiprocessing.get_context("spawn")  # forking a process that has used torch's threads can hang
    with context.Pool(workers, initializer=_prepare) as pool:
        yield from pool.imap_unordered(_run, list(enumerate(jobs)))


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the workers
    torch.set_num_threads(1)


def _run(numbered: tuple[int, Job]) -> tuple[int, Any]:
    index, job = numbered
    try:
        return index, job()
    except UserError as error:  # of whatever subclass: the plain one can be sent to the parent
        raise UserError(f"{job}: {error}") from None
