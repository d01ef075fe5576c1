"""A measurement of speed in sentences and tables."""

import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from sparseopt.lab.show.table import Table
from sparseopt.lab.show.words import counted
from sparseopt.lab.speed.measure import DENSE, ENGINE, Speed

HEADINGS = {ENGINE: "engine"}


def machine(threads: int) -> str:
    """What the numbers depend on: processor, instruction set, threads, torch."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {capability}, {counted(threads, 'thread')}, torch {torch.__version__}"


def sentence(speed: Speed) -> str:
    """The result in one sentence, with the reason where there is none."""
    if speed.why_not is not None:
        return (
            f"The sparse kernels do not run on this machine ({speed.why_not}): a sparse network takes as long as "
            f"a dense one here. On disk it needs {size(speed.packed_bytes)} instead of {size(speed.dense_bytes)}."
        )
    step, one, _ = speed.tasks
    told = [
        f"{milliseconds(task.ms[task.best])} ms instead of {milliseconds(task.ms[DENSE])} for {what} "
        f"({task.ratio(task.best):.1f} times as fast)"
        for task, what in ((step, "a training step"), (one, "one image"))
    ]
    return (
        f"With {speed.sparsity:.0%} of its weights zero, a {speed.network} takes {' and '.join(told)} on this machine, and "
        f"{size(speed.packed_bytes)} on disk instead of {size(speed.dense_bytes)}."
    )


def size(count: int) -> str:
    """Bytes as a person says them.

    >>> size(1_100_000), size(43_200)
    ('1.1 MB', '43 kB')
    """
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def table(measured: Sequence[Speed]) -> Table:
    """One row a network, sparsity and task, narrow enough for a terminal of 80 columns."""
    kinds = list(dict.fromkeys(kind for speed in measured for task in speed.tasks for kind in task.ms))
    rows = [
        (
            speed.network.partition(" on ")[0],
            f"{speed.sparsity:.0%}",
            task.name,
            *(_cell(task.ms, kind) for kind in kinds),
        )
        for speed in measured
        for task in speed.tasks
    ]
    return Table(
        ("network", "zeros", "task", *(f"{HEADINGS.get(kind, kind)} (ms)" for kind in kinds)), rows, labels=3
    )


def _cell(ms: dict[str, float], kind: str) -> str:
    if kind not in ms:
        return "-"
    return (
        milliseconds(ms[kind]) if kind == DENSE else f"{milliseconds(ms[kind])} ({ms[DENSE] / ms[kind]:.1f}x)"
    )


def milliseconds(value: float) -> str:
    """Three digits, and no powers of ten.

    >>> milliseconds(0.5234), milliseconds(12.34), milliseconds(1234.5)
    ('0.523', '12.3', '1,234')
    """
    return f"{value:.3g}" if value < 999 else f"{value:,.0f}"
