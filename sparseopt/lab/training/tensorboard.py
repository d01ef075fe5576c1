"""Curves for TensorBoard: every step's training loss, every epoch's metrics."""

import contextlib
import threading
from pathlib import Path

from torch import Tensor

from sparseopt.lab.runs.row import Row
from sparseopt.lab.system.files import reporting_write_errors
from sparseopt.lab.training.trainer import Observer, Trainer


class TensorBoard(Observer):
    """Writes events into a folder. What a resumed run computes again replaces what had been written after it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def started(self, trainer: Trainer) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter  # takes a second to import

        first = trainer.epoch * trainer.experiment.data.steps_per_epoch
        self._hook = threading.excepthook
        threading.excepthook = self._without_the_writers
        with reporting_write_errors(self._folder):
            self._writer = SummaryWriter(str(self._folder), purge_step=first + 1)

    def epoch_ended(self, trainer: Trainer, row: Row, losses: Tensor) -> None:
        first = row["step"] - len(losses)
        with reporting_write_errors(self._folder):
            for number, loss in enumerate(losses.tolist(), start=1):
                self._writer.add_scalar("step/train_loss", loss, first + number)
            for name, value in row.items():
                if name not in ("epoch", "step") and value is not None:
                    self._writer.add_scalar(f"epoch/{name}", value, row["step"])
            self._writer.flush()

    def ended(self) -> None:
        if hasattr(self, "_hook"):
            threading.excepthook = self._hook
        if hasattr(self, "_writer"):
            with contextlib.suppress(OSError):  # what could not be written has been told
                self._writer.close()

    def _without_the_writers(self, told: threading.ExceptHookArgs) -> None:
        """What the thread of a writer could not write, the writer raises as well: no need for a traceback."""
        if not (
            isinstance(told.exc_value, OSError) and type(told.thread).__module__.startswith("tensorboard")
        ):
            self._hook(told)
