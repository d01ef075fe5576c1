"""The heartbeat of a worker while it trains, and the accuracies it reports with it.

Training never waits for the database: a thread raises the heartbeat and hands in the accuracies; while the database is away,
they are queued.
"""

import logging
import threading
from types import TracebackType

from torch import Tensor

from sparseopt.lab.runs.row import Row
from sparseopt.lab.sweep.patience import is_outage, reason
from sparseopt.lab.sweep.trials import Claim, Lost, Trials
from sparseopt.lab.system.interrupt import StopRequest
from sparseopt.lab.training.trainer import Observer, Trainer

log = logging.getLogger(__name__)


class Pulse(Observer):
    """Beats from the beginning of the block to its end; observes the training in between."""

    def __init__(self, trials: Trials, claim: Claim, interval: float, stop: StopRequest) -> None:
        self._trials, self._claim, self._interval, self._stop = trials, claim, interval, stop
        self._accuracies: dict[int, float] = {}
        self._reported = 0
        self._lost = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)

    def __enter__(self) -> "Pulse":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def started(self, trainer: Trainer) -> None:
        if self._stop.made:  # while the run was being prepared; from here on, training handles signals itself
            raise KeyboardInterrupt
        for row in trainer.rows:  # of a run that goes on, perhaps begun elsewhere
            self._accuracies[row["epoch"]] = row["test_accuracy"]

    def stepped(self, trainer: Trainer) -> None:
        if self._lost:
            raise Lost  # before a checkpoint is written: the run is another worker's

    def epoch_ended(self, trainer: Trainer, row: Row, losses: Tensor) -> None:
        self._accuracies[row["epoch"]] = row["test_accuracy"]

    def _beat_on(self) -> None:
        number, away = 0, False
        while not self._over.wait(self._interval):
            number += 1
            try:
                self._beat(number)
            except Lost:
                self._lost = True
                return
            except Exception as error:
                if not is_outage(error):
                    log.warning(
                        "the heartbeat of %s has stopped: %s", self._claim.config.run_name, reason(error)
                    )
                    return
                if not away:
                    log.warning("the database does not answer (%s); training goes on", reason(error))
                away = True
            else:
                away = False

    def _beat(self, number: int) -> None:
        epochs = sorted(self._accuracies)[self._reported :]
        self._trials.beat(self._claim, number, {epoch: self._accuracies[epoch] for epoch in epochs})
        self._reported += len(epochs)
