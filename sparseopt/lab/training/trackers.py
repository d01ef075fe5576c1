"""Where the curves of a run go besides its folder: TensorBoard, MLflow, Weights & Biases.

Each is an observer of the training. A resumed run goes on with the curves it had: TensorBoard's events after the last checkpoint
are replaced, and the identity that MLflow or W&B gave the run is kept in the run's folder (tracker-NAME.json).
"""

import importlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor

from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.row import Row
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.system.files import read_json, write_json
from sparseopt.lab.training.tensorboard import TensorBoard
from sparseopt.lab.training.trainer import Observer, Trainer

Tracker = Literal["tensorboard", "mlflow", "wandb"]
log = logging.getLogger(__name__)

PROJECT = "sparseopt"


def trackers(names: Sequence[Tracker], run: RunDir) -> list[Observer]:
    """The observers of these names, each once."""
    made = {
        "tensorboard": lambda: TensorBoard(run.tensorboard),
        "mlflow": lambda: MLflow(run),
        "wandb": lambda: Wandb(run),
    }
    return [made[name]() for name in dict.fromkeys(names)]


class _Tracker(Observer, ABC):
    """What MLflow and W&B have in common: settings once, a row of metrics an epoch, one identity for all parts of a run."""

    name: Tracker

    def __init__(self, run: RunDir) -> None:
        self._library = _imported(self.name)
        self._run, self._record = run, run.path / f"tracker-{self.name}.json"
        self._open = False

    def started(self, trainer: Trainer) -> None:
        before = read_json(self._record)["id"] if self._record.exists() else None
        try:
            identity = self.begin(before, trainer)
        except Exception as error:  # of whatever kind the library has: no server, no account, no such run
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise UserError(f"--tracker {self.name} cannot begin: {reason}") from error
        self._open = True
        if identity != before:
            write_json(self._record, {"id": identity})

    def epoch_ended(self, trainer: Trainer, row: Row, losses: Tensor) -> None:
        numbers = {
            name: value for name, value in row.items() if name not in ("epoch", "step") and value is not None
        }
        self._tell_if_it_fails("epoch", lambda: self.log(numbers, row["epoch"]))

    def ended(self) -> None:
        if self._open:
            self._tell_if_it_fails("end", self.finish)

    def _tell_if_it_fails(self, what: str, call: Callable[[], None]) -> None:
        """A curve that is missing elsewhere is not worth the run."""
        try:
            call()
        except Exception as error:  # of whatever kind the library has
            reason = str(error).partition("\n")[0] or type(error).__name__
            log.warning("--tracker %s has not got an %s of %s: %s", self.name, what, self._run.path, reason)

    @abstractmethod
    def begin(self, identity: str | None, trainer: Trainer) -> str:
        """Begin, or go on with, the run of this identity; the identity it has."""

    @abstractmethod
    def log(self, numbers: dict[str, float], epoch: int) -> None:
        """The numbers of an epoch."""

    @abstractmethod
    def finish(self) -> None:
        """The run has ended, or is stopped."""


class MLflow(_Tracker):
    """To $MLFLOW_TRACKING_URI, by default as MLflow itself decides; the experiment is `sparseopt` or $MLFLOW_EXPERIMENT_NAME."""

    name = "mlflow"

    def begin(self, identity: str | None, trainer: Trainer) -> str:
        # Newer versions refuse to write into a folder unless told so; who names one in $MLFLOW_TRACKING_URI has said it.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        config = trainer.experiment.config
        if identity is None:
            self._library.set_experiment(_environment("MLFLOW_EXPERIMENT_NAME", PROJECT))
            run = self._library.start_run(run_name=config.run_name)
            self._library.log_params(config.in_force())
        else:
            run = self._library.start_run(run_id=identity)
        return run.info.run_id

    def log(self, numbers: dict[str, float], epoch: int) -> None:
        self._library.log_metrics(numbers, step=epoch)

    def finish(self) -> None:
        self._library.end_run()


class Wandb(_Tracker):
    """To the project $WANDB_PROJECT, by default `sparseopt`; $WANDB_MODE=offline keeps everything on this machine."""

    name = "wandb"

    def begin(self, identity: str | None, trainer: Trainer) -> str:
        config = trainer.experiment.config
        self._log = self._library.init(
            project=_environment("WANDB_PROJECT", PROJECT),
            name=config.run_name,
            config=config.in_force(),
            id=identity,
            resume="allow",
            dir=str(self._run.path),
        )
        return self._log.id

    def log(self, numbers: dict[str, float], epoch: int) -> None:
        self._log.log(numbers, step=epoch)

    def finish(self) -> None:
        self._log.finish()


def _imported(name: Tracker) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"--tracker {name} needs {error.name}, which is not installed; pip install 'sparseopt[{name}]'"
        ) from error


def _environment(name: str, default: str) -> str:
    return os.environ.get(name) or default
