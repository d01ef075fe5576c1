"""Jobs on processes of one thread each: for networks this small, two processes beat two threads.

These are the standard library's, and on purpose not `run_configs`, the runner of sweeps, which keeps a study in a database,
heartbeats and two checkpoints a run, so that work of hours survives whatever happens to it. The demo's 111 trainings take a
second each and begin anew with the next demo; their checkpoints would take 1.5 GB (14 MB a run), and the curves of act 3 need
the loss of every step, which a run's folder does not hold. What acts 1 and 2 need is no run at all.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import torch

from sparseopt.lab.errors import UserError

Job = Callable[[], Any]


@contextmanager
def pool_of(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that take jobs until the block ends; none is left then, and no job that waits is begun."""
    context = multiprocessing.get_context("spawn")  # forking a process that has used torch's threads can hang
    pool = ProcessPoolExecutor(workers, context, _prepare)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def run_all(jobs: Sequence[Job], pool: ProcessPoolExecutor) -> Iterator[tuple[int, Any]]:
    """Run the jobs, started in their order, and yield (index, result) as they are done."""
    numbers = {pool.submit(_run, job): index for index, job in enumerate(jobs)}
    try:
        for future in as_completed(numbers):
            yield numbers[future], future.result()
    except BrokenProcessPool:
        raise UserError(
            "a worker process died, perhaps for want of memory; try sparseopt demo --workers 1"
        ) from None


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker at once, and without a word
    torch.set_num_threads(1)


def _run(job: Job) -> Any:
    try:
        return job()
    except UserError as error:  # of whatever subclass: the plain one can be sent to the parent
        raise UserError(f"{job}: {error}") from None
