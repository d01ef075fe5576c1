"""A sweep from beginning to end, as seen by the process that a person started: it works through others."""

import logging
from dataclasses import dataclass

from optuna.trial import FrozenTrial
from rich.console import Console

from sparseopt.lab.errors import INTERRUPTED, UserError
from sparseopt.lab.sweep.crew import Crew
from sparseopt.lab.sweep.display import display
from sparseopt.lab.sweep.job import DEAD_AFTER, Job
from sparseopt.lab.sweep.plan import RUN
from sparseopt.lab.sweep.progress import SweepProgress
from sparseopt.lab.sweep.trials import Trials
from sparseopt.lab.sweep.watch import Watch

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0


@dataclass(frozen=True)
class SweepOutcome:
    """What has become of a sweep."""

    trials: list[FrozenTrial]
    refused: dict[str, str]
    """Runs that could not be trained here, and why; they wait in the study."""


def conduct(job: Job, workers: int, console: Console, dead_after: float = DEAD_AFTER) -> SweepOutcome:
    """Work on the study until all trials of the plan have ended, or a stop is requested."""
    job.database.require()
    trials = job.database.patience(lambda: Trials.open(job.database, job.name, job.plan))
    conductor = _Conductor(job, trials, Watch(dead_after, job.machine, job.in_use))
    crew = Crew(job, workers, conductor.left)
    stop = job.database.patience.stop
    try:
        with stop.listening(), display(console, conductor.poll()) as shown:
            with crew.working():
                while crew.at_work and not stop.made:
                    shown.show(conductor.poll())
                    crew.tend(POLL_SECONDS)
            if not stop.made:
                shown.show(conductor.poll())
    finally:
        job.database.close()
    if stop.made:
        progress = conductor.progress
        raise UserError(
            f"interrupted, {progress.done} of {progress.all} runs done; the same command goes on from there",
            INTERRUPTED,
        )
    return SweepOutcome(conductor.seen, crew.refused)


class _Conductor:
    """Polls the study, and releases the trials of dead workers."""

    def __init__(self, job: Job, trials: Trials, watch: Watch) -> None:
        self._job, self._trials, self._watch = job, trials, watch
        self._patience = job.database.patience
        self.seen: list[FrozenTrial] = []
        """The trials at the last poll."""

    @property
    def progress(self) -> SweepProgress:
        return SweepProgress.of(self.seen, [self._job.plan.epochs(trial) for trial in self.seen])

    def poll(self) -> SweepProgress:
        """How far everything is; trials of workers that have died, on whatever machine, are released."""
        outages = self._patience.outages
        self.seen = self._patience(self._trials.all)
        for trial in self._watch.poll(self.seen, outage=self._patience.outages > outages):
            self._release_dead(trial)
        return self.progress

    def left(self, worker: str, died: bool) -> bool:
        """One of our own workers has ended: its trial is released without waiting for its heartbeat to expire."""
        held = self._patience(lambda: self._trials.held_by(worker))
        for trial in held:
            if died:
                self._release_dead(trial)
            else:
                self._patience(lambda trial_id=trial._trial_id: self._trials.give_back(trial_id, worker))
        return bool(held)

    def _release_dead(self, trial: FrozenTrial) -> None:
        if self._patience(lambda: self._trials.release_dead(trial)):
            log.warning("the worker of %s died; another one goes on with it", trial.user_attrs.get(RUN))
