"""How far a sweep is: trials by their state, and the time that is left."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from sparseopt.lab.show.words import duration


@dataclass(frozen=True)
class SweepProgress:
    """The state of a sweep at one moment, over all machines."""

    done: int
    running: int
    failed: int
    waiting: int
    epochs: float
    """Epochs trained, of all runs; one that failed counts as trained to its end."""
    all_epochs: int

    @classmethod
    def of(cls, trials: Sequence[FrozenTrial], epochs: Sequence[int]) -> "SweepProgress":
        """Count trials, whose runs are to have so many epochs each."""
        states = Counter(trial.state for trial in trials)
        trained = [
            total if trial.state.is_finished() else len(trial.intermediate_values)
            for trial, total in zip(trials, epochs, strict=True)
        ]
        return cls(
            states[TrialState.COMPLETE],
            states[TrialState.RUNNING],
            states[TrialState.FAIL],
            states[TrialState.WAITING],
            sum(trained),
            sum(epochs),
        )

    @property
    def all(self) -> int:
        return self.done + self.running + self.failed + self.waiting

    def __str__(self) -> str:
        states = f"{self.running} running, {self.failed} failed, {self.waiting} waiting"
        return f"{self.done}/{self.all} done, {states}"


class SweepSpeed:
    """Epochs a second of all workers together, since the display began."""

    def __init__(self, first: SweepProgress) -> None:
        self._first, self._since = first, time.monotonic()

    def left(self, now: SweepProgress) -> str:
        """The time that the rest takes at this speed; empty if nothing is left, or nothing trained yet."""
        trained = now.epochs - self._first.epochs
        if trained <= 0 or now.epochs == now.all_epochs:
            return ""
        seconds = (now.all_epochs - now.epochs) * (time.monotonic() - self._since) / trained
        return f"{duration(seconds)} left"
