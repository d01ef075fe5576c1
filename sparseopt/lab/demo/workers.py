"""Jobs on a pool of processes of one thread each: for networks this small, two processes beat two threads.

This is the standard library's pool, and on purpose not `run_configs`, the runner of sweeps, which keeps a study in a database,
heartbeats and two checkpoints a run, so that work of hours survives whatever happens to it. The demo's 111 trainings take two
seconds each and begin anew with the next demo; their checkpoints would take 1.5 GB (14 MB a run), and the curves of act 3 need
the loss of every step, which a run's folder does not hold. Act 2's analyses are no runs at all.
"""

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
