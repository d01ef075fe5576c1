"""The training loop, as a thing that can be put down and taken up again after any step.

The state of a run is the network, the optimizer (masks and step count included), the position (epoch and batch)
and the numbers gathered so far. Everything else, learning rate, order of the images, augmentation, random
growth, what a network draws (dropout), is a pure function of seed and position.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.row import Row
from sparseopt.lab.training.experiment import Experiment
from sparseopt.lab.training.metrics import CORRECT, GRAD_NORM, LOSS, epoch_row, new_trace, right
from sparseopt.topology.randomness import keyed

FORMAT = 1
DIVERGED = 3


class Diverged(UserError):
    """The loss or the weights are not finite any more."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"{what} at step {step}; lower --lr, or set --max-grad-norm 1", exit_code=DIVERGED)
        self.step = step


class Observer:
    """Somebody who wants to know how a run goes on; every method may be left as it is."""

    def started(self, trainer: "Trainer") -> None:
        """Training begins, or goes on, at the trainer's position."""

    def stepped(self, trainer: "Trainer") -> None:
        """One more step has been taken."""

    def epoch_ended(self, trainer: "Trainer", row: Row, losses: Tensor) -> None:
        """An epoch is complete: its row of metrics, and the training loss of each of its steps."""

    def ended(self) -> None:
        """Training is over, whether it came to its end, failed or was interrupted."""


class Trainer:
    """Trains an experiment from its position to the end, and notifies its observers in their order."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.epoch = 0
        self.batch = 0
        self.rows: list[Row] = []
        self.trace = new_trace(experiment)
        self._seconds_before = 0.0
        self._since = time.monotonic()

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return self.epoch * self.experiment.data.steps_per_epoch + self.batch

    @property
    def total_steps(self) -> int:
        return self.experiment.schedule.total_steps

    @property
    def seconds(self) -> float:
        """Time spent on training so far, interruptions not counted."""
        return self._seconds_before + time.monotonic() - self._since

    def run(self, observers: Sequence[Observer] = ()) -> None:
        """Train to the end."""
        try:
            for observer in observers:
                observer.started(self)
            self._since = time.monotonic()
            while self.epoch < self.experiment.config.epochs:
                self._finish_epoch(observers)
        finally:
            for observer in observers:
                observer.ended()

    def check_finite(self) -> None:
        """Raise `Diverged` if a loss of this epoch, or the network, is not finite. Waits for the device."""
        losses = self.trace[LOSS, : self.batch]
        if not bool(losses.isfinite().all()):
            first = int((~losses.isfinite()).nonzero()[0])
            raise Diverged(self.step - self.batch + first + 1, f"the loss became {losses[first].item()}")
        state = [value for value in self.experiment.model.state_dict().values() if value.is_floating_point()]
        if not bool(torch.stack([value.isfinite().all() for value in state]).all()):
            raise Diverged(self.step, "the weights became infinite or NaN")

    def state_dict(self) -> dict[str, Any]:
        """All there is to save: tensors and plain values only."""
        return {
            "format": FORMAT,
            "config": self.experiment.config.to_json(),
            "model": self.experiment.model.state_dict(),
            "optimizer": self.experiment.optimizer.state_dict(),
            "epoch": self.epoch,
            "batch": self.batch,
            "trace": self.trace,
            "rows": self.rows,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a run where it was put down."""
        if state.get("format") != FORMAT:
            raise UserError(
                f"the run's checkpoint has format {state.get('format')}, and this version reads {FORMAT}: go on with the version "
                "that wrote it, or train anew in another folder"
            )
        try:
            self.experiment.model.load_state_dict(state["model"])
            self.experiment.optimizer.load_state_dict(state["optimizer"])
            self.epoch, self.batch = state["epoch"], state["batch"]
            self.trace.copy_(state["trace"])
            self.rows = list(state["rows"])
            self._seconds_before, self._since = state["seconds"], time.monotonic()
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"the checkpoint is not one of this network ({reason}); choose another --out"
            ) from error

    def _finish_epoch(self, observers: Sequence[Observer]) -> None:
        self.experiment.model.train()
        for x, y in self.experiment.data.train_batches(self.epoch, self.batch):
            self._take_step(x, y)
            for observer in observers:
                observer.stepped(self)
        self.check_finite()
        row = epoch_row(self.experiment, self.trace, self.rows, self.seconds)
        losses = self.trace[LOSS].cpu()
        self.rows.append(row)
        self.epoch, self.batch = self.epoch + 1, 0
        self.trace = new_trace(self.experiment)
        for observer in observers:
            observer.epoch_ended(self, row, losses)

    def _take_step(self, x: Tensor, y: Tensor) -> None:
        experiment = self.experiment
        for group in experiment.optimizer.param_groups:
            group["lr"] = experiment.schedule(self.step)
        experiment.optimizer.zero_grad()
        torch.manual_seed(keyed(experiment.config.seed, "step", self.step, experiment.ranks.rank))
        scores = experiment.scores(experiment.forward, x)
        loss = cross_entropy(scores, y)
        loss.backward()
        correct = right(scores.detach(), y)
        numbers = torch.stack([loss.detach() / experiment.ranks.size, correct])
        self.trace[: CORRECT + 1, self.batch] = experiment.ranks.sum_(numbers)  # a slice: a list would wait
        self.trace[GRAD_NORM, self.batch] = experiment.update()
        self.batch += 1
