"""A worker: a process that takes up one trial after the other and trains it, until there is nothing left to do."""

import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection, wait
from typing import NoReturn

from optuna.trial import TrialState

from sparseopt.lab.errors import INTERRUPTED, DiskFull, UserError
from sparseopt.lab.runs.rundir import InUse
from sparseopt.lab.show.words import duration
from sparseopt.lab.sweep.job import Job, worker_name
from sparseopt.lab.sweep.messages import CannotWork, Refused, Sender
from sparseopt.lab.sweep.pulse import Pulse
from sparseopt.lab.sweep.trials import RUNNING, WAITING, Claim, Lost, Trials
from sparseopt.lab.training.place import settle
from sparseopt.lab.training.train import Summary, train
from sparseopt.lab.training.trainer import Diverged

log = logging.getLogger(__name__)

CANNOT_WORK = 2
IDLE_SECONDS = 2.0
LONG = 60.0
"""Seconds of training after which a disk that is full again is another disk that is full."""


def work(job: Job, token: str, pipe: Connection) -> None:
    """The main function of a worker process: its exit code is 0 if nothing is left to do, 130 if it was asked to stop."""
    os.setpgrp()  # Ctrl-C is for the parent, which lets every worker save and stop
    sender = Sender(pipe)
    logging.basicConfig(handlers=[sender], level=logging.WARNING, format="%(message)s", force=True)
    try:
        with job.database.patience.stop.listening():
            threading.Thread(target=_stop_with_parent, daemon=True).start()
            Worker(job, worker_name(os.getpid(), token), sender).run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except UserError as error:
        sender.send(CannotWork(str(error)))
        sys.exit(CANNOT_WORK)


class Worker:
    """Takes up trials under its name."""

    def __init__(self, job: Job, name: str, sender: Sender) -> None:
        self.job, self.name, self.sender = job, name, sender
        self.patience = job.database.patience
        self.stop = self.patience.stop
        self.device = settle(job.place)
        self.trials = self.patience(lambda: Trials(job.database, job.name, job.plan))
        self.refused: set[int] = set()
        """Trials that cannot be trained here, and wait for another worker, or for the cause to be removed."""
        self.occupied: set[int] = set()
        """Trials whose run is locked by a process outside the study; they are tried last."""

    def run(self) -> None:
        """Work until every trial has ended or is refused; while others work on the last ones, be ready to take over."""
        while states := self.patience(self._unfinished):
            if self.stop.made:
                raise KeyboardInterrupt
            claim = self.patience(self._claim) if WAITING in states else None
            if claim is not None:
                self._take_up(claim)
                gc.collect()  # of a network, before the next one is made
            else:
                time.sleep(min(IDLE_SECONDS, self.job.heartbeat))

    def _unfinished(self) -> set[TrialState]:
        """The states of the trials that this worker may still be needed for."""
        states = {trial.state for trial in self.trials.all() if trial._trial_id not in self.refused}
        return states & {WAITING, RUNNING}

    def _claim(self) -> Claim | None:
        first = self.trials.claim(self.name, self.job.machine, self.refused | self.occupied)
        return first or self.trials.claim(self.name, self.job.machine, self.refused)

    def _take_up(self, claim: Claim) -> None:
        """Train, and record the result in the study; whatever happens, the trial does not stay claimed."""
        try:
            self._train(claim)
        except Lost:
            log.warning("%s is now trained by another worker", claim.config.run_name)
        except InUse as error:
            log.info("%s", error)
            self.occupied.add(claim.trial_id)
            self._give_back(claim)
            time.sleep(self.job.heartbeat)
        except Diverged as error:
            self._fail(claim, str(error))
        except KeyboardInterrupt:
            self._stop_at(claim)
        except UserError as error:
            if error.exit_code == INTERRUPTED:
                self._stop_at(claim)
            self._refuse(claim, str(error))
        except OSError as error:  # of the machine, not of the run
            self._refuse(claim, f"{error}")
        except Exception as error:
            self._fail(claim, f"{type(error).__name__}: {error}")
            log.error("%s failed\n%s", claim.config.run_name, traceback.format_exc())

    def _train(self, claim: Claim) -> None:
        job = self.job
        with Pulse(self.trials, claim, job.heartbeat, self.stop) as pulse:
            summary = self._train_with_room(claim, pulse)
            accuracies = {row["epoch"]: row["test_accuracy"] for row in summary.rows}
            seconds = summary.result["seconds"]
            self.patience(lambda: self.trials.complete(claim, accuracies, seconds))

    def _train_with_room(self, claim: Claim, pulse: Pulse) -> Summary:
        """Train; on a full disk wait for room, as long as for the database, and go on from the checkpoint."""
        job, full_since = self.job, None
        while True:
            begun = time.monotonic()
            try:
                return train(
                    *(claim.config, job.run_dir(claim.config.run_name)),
                    data_dir=job.place.data_dir,
                    device=self.device,
                    observers=[pulse],
                    checkpoint_seconds=job.place.checkpoint_seconds,
                    accelerate=job.place.accelerate,
                    storage=job.place.weight_storage,
                    tracker=job.place.tracker,
                )
            except DiskFull as error:
                now = time.monotonic()
                if full_since is None or now - begun > LONG:
                    full_since = now
                    log.warning("%s; waiting for room, at most %s", error, duration(self.patience.limit))
                if now - full_since > self.patience.limit:
                    raise
            time.sleep(min(IDLE_SECONDS, job.heartbeat))
            if self.stop.made:
                raise KeyboardInterrupt

    def _fail(self, claim: Claim, reason: str) -> None:
        try:
            self.patience(lambda: self.trials.fail(claim, reason))
        except Lost:
            log.warning("%s is now trained by another worker", claim.config.run_name)

    def _give_back(self, claim: Claim) -> None:
        self.patience(lambda: self.trials.give_back(claim.trial_id, claim.worker))

    def _refuse(self, claim: Claim, reason: str) -> None:
        self._give_back(claim)
        self.refused.add(claim.trial_id)
        self.sender.send(Refused(claim.config.run_name, reason))

    def _stop_at(self, claim: Claim) -> NoReturn:
        """The run is saved. If the database is away as well, its trial is released when the heartbeat has expired."""
        self.stop.made = True
        try:
            self._give_back(claim)
        except UserError as error:
            log.warning("%s could not be given back: %s", claim.config.run_name, error)
        raise KeyboardInterrupt


def _stop_with_parent() -> None:
    """Stop as on SIGTERM when the process that started this worker has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
