"""What the runs of a grid would take here: measured from a few real steps, never guessed from their size.

A step that moves connections costs more than an ordinary one, and comes rarely. Here it is made to come often, both
are timed, and they are put together in the proportion of the real run.
"""

import contextlib
import gc
import logging
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from torch import Tensor

from sparseopt.lab.config.recipes import Config
from sparseopt.lab.data import Batch, Pipeline
from sparseopt.lab.runs.row import Row
from sparseopt.lab.training.experiment import Experiment, build
from sparseopt.lab.training.metrics import evaluate
from sparseopt.lab.training.place import Place, settle
from sparseopt.lab.training.trainer import Observer, Trainer

UNTIMED = 2  # steps in which memory is allocated and caches fill
TIMED = 8
UPDATE_EVERY = 4


@dataclass(frozen=True)
class Pace:
    """How fast a configuration trains on this machine, in seconds."""

    step: float
    evaluation: float
    steps_per_epoch: int

    @property
    def epoch(self) -> float:
        return self.steps_per_epoch * self.step + self.evaluation


def measure(config: Config, place: Place) -> Pace:
    """Train a few steps and evaluate a batch. What runs where is told when it is trained, not here, row by row."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.INFO))
    try:
        return _measure(config, place)
    finally:
        logging.disable(before)
        gc.collect()  # of a network, before the next one is made


def _measure(config: Config, place: Place) -> Pace:
    enough = max(config.epochs, UNTIMED + TIMED)  # an epoch of very little data may be a single step
    often = replace(config, every=UPDATE_EVERY, epochs=enough)
    kept = {"accelerate": place.accelerate, "storage": place.weight_storage}
    experiment = build(often, device=settle(place), data_dir=place.data_dir, **kept)
    timing = StepTimes()
    trainer = Trainer(experiment)
    with contextlib.suppress(Enough):
        trainer.run([timing])
    updates = config.until / config.every
    ordinary = statistics.median(
        timing.ordinary or timing.updates
    )  # some methods move connections at every step
    update = statistics.median(timing.updates) if timing.updates else ordinary
    step = ordinary + updates * (update - ordinary)
    return Pace(step, _evaluation(experiment), experiment.data.steps_per_epoch)


class Enough(Exception):
    """The steps that were wanted have been taken."""


class StepTimes(Observer):
    """The seconds of each step, of ordinary ones and of those that moved connections; raises `Enough` in the end."""

    def __init__(self) -> None:
        self.ordinary: list[float] = []
        self.updates: list[float] = []
        self._steps = 0
        self._version: int | None = None
        self._since = 0.0

    def started(self, trainer: Trainer) -> None:
        self._begin(trainer)

    def stepped(self, trainer: Trainer) -> None:
        trainer.trace[0, trainer.batch - 1].item()  # waits for the device
        seconds = time.perf_counter() - self._since
        self._steps += 1
        if self._steps > UNTIMED:
            (self.ordinary if _version(trainer) == self._version else self.updates).append(seconds)
        if self._steps == UNTIMED + TIMED:
            raise Enough
        self._begin(trainer)

    def epoch_ended(self, trainer: Trainer, row: Row, losses: Tensor) -> None:
        self._begin(trainer)

    def _begin(self, trainer: Trainer) -> None:
        self._version, self._since = _version(trainer), time.perf_counter()


def _version(trainer: Trainer) -> int | None:
    topology = trainer.experiment.topology
    return None if topology is None else topology.version


def _evaluation(experiment: Experiment) -> float:
    """The seconds of one evaluation, from its first batch, which has been loaded and evaluated once before."""
    first = FirstTestBatch(experiment.data)
    once = replace(experiment, data=first)
    evaluate(once)  # a first one asks for memory
    since = time.perf_counter()
    evaluate(once)
    return (time.perf_counter() - since) * experiment.data.test_images / first.test_images


class FirstTestBatch:
    """A pipeline of which only the first batch of the test set is shown."""

    def __init__(self, data: Pipeline) -> None:
        self._data = data
        self.shape, self.classes, self.steps_per_epoch = data.shape, data.classes, data.steps_per_epoch
        self._first = list(islice(data.test_batches(), 1))
        self.test_images = sum(len(labels) for _, labels in self._first)

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        return self._data.train_batches(epoch, start)

    def test_batches(self) -> Iterator[Batch]:
        return iter(self._first)
