"""A sweep from beginning to end, as seen by the process that a person started: it works through others."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from optuna.trial import FrozenTrial
from rich.console import Console

from sparseopt.lab.cli import INTERRUPTED, UserError
from sparseopt.lab.sweep.crew import Crew
from sparseopt.lab.sweep.display import display
from sparseopt.lab.sweep.job import DEAD_AFTER, Job
from sparseopt.lab.sweep.plan import RUN
from sparseopt.lab.sweep.tally import Tally
from sparseopt.lab.sweep.trials import Trials
from sparseopt.lab.sweep.watch import Watch

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Outcome:
    """What has become of a sweep."""

    trials: list[FrozenTrial]
    refused: dict[str, str]
    """Runs that could not be trained here, and why; they wait in the study."""


def conduct(job: Job, workers: int, console: Console, dead_after: float = DEAD_AFTER) -> Outcome:
    """Work on the study until all trials of the plan have ended, or somebody asks to stop."""
    job.database.require()
    trials = job.database.patience(lambda: Trials.open(job.database, job.name, job.plan))
    conductor = _Conductor(job, trials, Watch(dead_after, job.seat, job.in_use))
    crew = Crew(job, workers, conductor.left)
    try:
        with _sigterm_as_ctrl_c(), display(console, conductor.look()) as shown, crew.working():
            while crew.at_work:
                shown.show(conductor.look())
                crew.tend(LOOK_SECONDS)
            shown.show(conductor.look())
    except KeyboardInterrupt:
        raise UserError(
            f"interrupted ({conductor.tally}); the same command goes on from there", INTERRUPTED
        ) from None
    finally:
        job.database.close()
    return Outcome(conductor.seen, crew.refused)


class _Conductor:
    """Looks at the study, and puts back what dead workers have left."""

    def __init__(self, job: Job, trials: Trials, watch: Watch) -> None:
        self._job, self._trials, self._watch = job, trials, watch
        self._patience = job.database.patience
        self.seen: list[FrozenTrial] = []
        """The trials at the last look."""

    @property
    def tally(self) -> Tally:
        return Tally.of(self.seen, [self._job.plan.epochs(trial) for trial in self.seen])

    def look(self) -> Tally:
        """How far everything is; what workers anywhere have left when they died is given back."""
        outages = self._patience.outages
        self.seen = self._patience(self._trials.all)
        for trial in self._watch.look(self.seen, outage=self._patience.outages > outages):
            self._bury(trial)
        return self.tally

    def left(self, worker: str, died: bool) -> bool:
        """One of our own workers is gone: nobody needs to wait for its heartbeat."""
        held = self._patience(lambda: self._trials.held_by(worker))
        for trial in held:
            if died:
                self._bury(trial)
            else:
                self._patience(lambda trial_id=trial._trial_id: self._trials.give_back(trial_id, worker))
        return bool(held)

    def _bury(self, trial: FrozenTrial) -> None:
        if self._patience(lambda: self._trials.bury(trial)):
            log.warning("the worker of %s died; another one goes on with it", trial.user_attrs.get(RUN))


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """A cluster that wants its node back, and a person at the keyboard, are heard alike."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
