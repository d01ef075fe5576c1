"""How a sweep shows itself: a live bar in a terminal, plain lines anywhere else."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from sparseopt.lab.sweep.progress import SweepProgress, SweepSpeed
from sparseopt.lab.training.progress import LINE_SECONDS


class Lines:
    """A line whenever a trial has ended, and every half minute."""

    def __init__(self, console: Console, first: SweepProgress) -> None:
        self._console, self._speed = console, SweepSpeed(first)
        self._shown: SweepProgress | None = None
        self._shown_at = 0.0

    def show(self, progress: SweepProgress) -> None:
        ended = self._shown is None or (progress.done, progress.failed) != (
            self._shown.done,
            self._shown.failed,
        )
        if ended or time.monotonic() - self._shown_at >= LINE_SECONDS:
            self._shown, self._shown_at = progress, time.monotonic()
            left = self._speed.left(progress)
            self._console.print(f"{progress}{left and f', {left}'}", highlight=False, soft_wrap=True)


class Bar:
    """A bar of epochs, with the trials beside it."""

    def __init__(self, progress: Progress, first: SweepProgress) -> None:
        self._progress, self._speed = progress, SweepSpeed(first)
        self._task = progress.add_task("", total=first.all_epochs, left="")

    def show(self, progress: SweepProgress) -> None:
        self._progress.update(
            self._task,
            completed=progress.epochs,
            total=progress.all_epochs,
            description=str(progress),
            left=self._speed.left(progress),
        )


@contextmanager
def display(console: Console, first: SweepProgress) -> Iterator[Lines | Bar]:
    """The right display for where the output goes."""
    if not console.is_terminal:
        yield Lines(console, first)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[left]}", style="progress.remaining"),
    )
    with Progress(*columns, console=console) as progress, _log_above():
        yield Bar(progress, first)


@contextmanager
def _log_above() -> Iterator[None]:
    """Let what is logged go through the standard error that a live bar has put itself in front of."""
    handlers = [each for each in logging.root.handlers if type(each) is logging.StreamHandler]
    before = [(each, each.setStream(sys.stderr)) for each in handlers]
    try:
        yield
    finally:
        for handler, stream in before:
            if stream is not None:
                handler.setStream(stream)
