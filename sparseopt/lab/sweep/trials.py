"""The trials of a sweep: who works on which, who is alive, and what came out.

One run is one trial, from the beginning to its end, whoever works on it: it waits, runs, is given back when its worker stops
or dies, runs again from its checkpoint, and is complete once. While it runs it carries the name of its worker and a
heartbeat, a number that the worker raises every few seconds. A worker that finds another name on its trial has been
taken for dead, and lets go.

A claim is Optuna's compare-and-set: of all who set a waiting trial to running, one succeeds. A heartbeat, and the end of a trial,
which cannot be changed after, take no lock either. What must read, decide and write as one step (to release a trial, to join a
study, to choose the settings of a search) holds the lock of the study. Each method can be called again if its answer was lost.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from sparseopt.lab.config.differences import summarised
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.sweep.database import Database
from sparseopt.lab.sweep.definition import Definition
from sparseopt.lab.sweep.plan import RUN, Plan

DEFINITION = "sparseopt sweep"
WORKER, BEAT, MACHINE, DEATHS, REASON, SECONDS = "worker", "beat", "machine", "deaths", "reason", "seconds"
MOST_DEATHS = 5

WAITING, RUNNING, COMPLETE, FAIL = (
    TrialState.WAITING,
    TrialState.RUNNING,
    TrialState.COMPLETE,
    TrialState.FAIL,
)


class Lost(Exception):
    """The trial has another owner now."""


@dataclass(frozen=True)
class Claim:
    """A trial and its owner."""

    trial_id: int
    config: Config
    worker: str


class Trials:
    """The trials of one plan in one study."""

    def __init__(self, database: Database, name: str, plan: Plan) -> None:
        self.database, self.name, self.plan = database, name, plan
        self.storage = database.storage
        self.study = optuna.load_study(study_name=name, storage=self.storage)

    @classmethod
    def open(cls, database: Database, name: str, plan: Plan) -> "Trials":
        """Make the study, or join it, and add the trials it lacks, whoever else does the same at this moment."""
        storage = database.storage  # before the block: making the tables is one as well
        with database.exclusive(name):
            study = optuna.create_study(
                study_name=name,
                storage=storage,
                direction=StudyDirection.MAXIMIZE,
                load_if_exists=True,
            )
            _join(study, database, plan.definition)
            for trial in plan.missing(study.get_trials(deepcopy=False)):
                study.add_trial(trial)
        return cls(database, name, plan)

    def all(self) -> list[FrozenTrial]:
        """The plan's trials as they are now."""
        return self.plan.mine(self.study.get_trials(deepcopy=False))

    def claim(self, worker: str, machine: str, refused: Iterable[int] = ()) -> Claim | None:
        """Become the owner of the first trial that waits; None if there is none but `refused` ones."""
        refused = set(refused)
        try:
            trials = self.all()
            for trial in trials:
                # A worker asks when it has no trial: one that bears its name is the answer that got lost.
                if trial.state == RUNNING and trial.user_attrs.get(WORKER) == worker:
                    return self._hand(trial, worker, machine)
            waiting = [each for each in trials if each.state == WAITING and each._trial_id not in refused]
            return self._claim_one_of(waiting, worker, machine)
        finally:
            self.database.close()

    def _claim_one_of(self, waiting: list[FrozenTrial], worker: str, machine: str) -> Claim | None:
        """The first, if no other worker is faster; else one of the next two, four, ...: many who start at once spread out."""
        draw, window = random.Random(worker), 1
        while waiting:
            trial = waiting.pop(draw.randrange(min(window, len(waiting))))
            if not self._set_running(trial._trial_id):
                window *= 2
            elif claim := self._hand(trial, worker, machine):
                return claim
        return None

    def _set_running(self, trial_id: int) -> bool:
        """Compare and set: False if the trial does not wait any more."""
        # Optuna locks the row between the two, where the database has locks of rows; SQLite has none.
        alone = nullcontext() if self.database.locks_rows else self.database.exclusive(self.name)
        with alone:
            try:
                return self.storage.set_trial_state_values(trial_id, RUNNING)
            except UpdateFinishedTrialError:
                return False

    def beat(self, claim: Claim, number: int, accuracies: Mapping[int, float]) -> None:
        """Show that the worker is alive, and the test accuracy of epochs; Lost if the trial is not its own any more."""
        # A worker that was taken for dead a moment ago may still write one beat, or an accuracy of the same run, on a trial that
        # is another's by now; its next beat finds that out.
        with self._as_owner(claim) as trial:
            self.storage.set_trial_user_attr(claim.trial_id, BEAT, number)
            self._report(trial, accuracies)

    def complete(self, claim: Claim, accuracies: Mapping[int, float], seconds: float) -> None:
        """The run is at its end; its value is the test accuracy of the last epoch."""
        with self._once(claim, COMPLETE), self._as_owner(claim) as trial:
            self._report(trial, accuracies)
            self.storage.set_trial_user_attr(claim.trial_id, SECONDS, seconds)
            final = accuracies[max(accuracies)]
            self.storage.set_trial_state_values(claim.trial_id, COMPLETE, [final])

    def fail(self, claim: Claim, reason: str) -> None:
        """The run cannot come to its end."""
        with self._once(claim, FAIL), self._as_owner(claim):
            self._fail(claim.trial_id, reason)

    def give_back(self, trial_id: int, worker: str) -> None:
        """Release a trial that this worker owns, for another one to go on with."""
        with self.database.exclusive(self.name):
            if self._is(trial_id, worker, RUNNING):
                self._release(trial_id)

    def held_by(self, worker: str) -> list[FrozenTrial]:
        """The running trials that a worker owns."""
        return [
            each for each in self.all() if each.state == RUNNING and each.user_attrs.get(WORKER) == worker
        ]

    def release_dead(self, dead: FrozenTrial) -> bool:
        """Release the trial of a dead worker, unless its heartbeat has moved since `dead` was read; was it released?

        A run at which worker after worker dies, without another epoch, is given up.
        """
        with (
            self.database.exclusive(self.name),
            suppress(UpdateFinishedTrialError),
        ):  # its worker was alive, and has ended it
            trial = self.storage.get_trial(dead._trial_id)
            if trial.state != RUNNING or vital_signs(trial) != vital_signs(dead):
                return False
            epochs = len(trial.intermediate_values)
            count, epochs_then = trial.user_attrs.get(DEATHS, (0, 0))
            count = count + 1 if epochs == epochs_then else 1
            self.storage.set_trial_user_attr(trial._trial_id, DEATHS, (count, epochs))
            if count >= MOST_DEATHS:
                self._fail(trial._trial_id, f"{count} workers have died at it, one after the other")
            else:
                self._release(trial._trial_id)
            return True
        return False

    def _release(self, trial_id: int) -> None:
        """Without an owner first: whoever had it must not find its name on a trial that the next one is claiming."""
        self.storage.set_trial_user_attr(trial_id, WORKER, "")
        self.storage.set_trial_state_values(trial_id, WAITING)

    def _hand(self, trial: FrozenTrial, worker: str, machine: str) -> Claim | None:
        """Write the owner on a trial that has just been set to running; None if what was chosen for it cannot be trained.

        A worker that dies in between leaves a trial without an owner, whose heartbeat stands still like a dead one's.
        """
        for key, value in {BEAT: 0, MACHINE: machine, WORKER: worker}.items():
            self.storage.set_trial_user_attr(trial._trial_id, key, value)
        # A search chooses by what the other trials show: one at a time.
        choosing = self.database.exclusive(self.name) if self.plan.chooses else nullcontext()
        try:
            with choosing:
                config = self.plan.config(self.study, trial)
        except UserError as error:
            self._fail(trial._trial_id, str(error))
            return None
        if trial.user_attrs.get(RUN) != config.run_name:
            self.storage.set_trial_user_attr(trial._trial_id, RUN, config.run_name)
        return Claim(trial._trial_id, config, worker)

    def _is(self, trial_id: int, worker: str, state: TrialState) -> bool:
        trial = self.storage.get_trial(trial_id)
        return trial.state == state and trial.user_attrs.get(WORKER) == worker

    @contextmanager
    def _as_owner(self, claim: Claim) -> Iterator[FrozenTrial]:
        """The trial of a claim that holds; Lost if it does not, or if the trial ends in between by another hand."""
        try:
            trial = self.storage.get_trial(claim.trial_id)
            if trial.state != RUNNING or trial.user_attrs.get(WORKER) != claim.worker:
                raise Lost
            yield trial
        except UpdateFinishedTrialError:
            raise Lost from None
        finally:
            self.database.close()

    @contextmanager
    def _once(self, claim: Claim, state: TrialState) -> Iterator[None]:
        """Whoever ends a trial a second time, because the first answer was lost, has ended it."""
        try:
            yield
        except Lost:
            try:
                if not self._is(claim.trial_id, claim.worker, state):
                    raise
            finally:
                self.database.close()

    def _report(self, trial: FrozenTrial, accuracies: Mapping[int, float]) -> None:
        """Add what the trial does not have yet: each value is a journey to the database."""
        for epoch, accuracy in accuracies.items():
            if trial.intermediate_values.get(epoch) != accuracy:
                self.storage.set_trial_intermediate_value(trial._trial_id, epoch, accuracy)

    def _fail(self, trial_id: int, reason: str) -> None:
        self.storage.set_trial_user_attr(trial_id, REASON, reason)
        self.storage.set_trial_state_values(trial_id, FAIL)


def vital_signs(trial: FrozenTrial) -> tuple[str, int]:
    """What changes while a worker is alive: the owner, and its heartbeat."""
    return trial.user_attrs.get(WORKER, ""), trial.user_attrs.get(BEAT, 0)


def _join(study: optuna.Study, database: Database, definition: Definition) -> None:
    """Agree with the others on what the sweep is; the first one says it."""
    if DEFINITION not in study.user_attrs and not study.get_trials(deepcopy=False):
        study.set_user_attr(DEFINITION, definition.to_json())
        return
    there = Definition.from_json(study.user_attrs.get(DEFINITION))
    if there is None:
        raise UserError(
            f"the study {study.study_name!r} in {database} is no sweep of sparseopt; give another --name"
        )
    if differences := there.differences(definition):
        raise UserError(
            f"the study {study.study_name!r} in {database} is another sweep ({summarised(differences)}); "
            "choose another --out or --name"
        )
    study.set_user_attr(DEFINITION, there.joined(definition).to_json())
