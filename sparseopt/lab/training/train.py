"""Train a configuration from beginning to end, in a run directory or without one.

`train` is what the command calls, and what a script calls for many runs in one process:

>>> from dataclasses import replace
>>> from sparseopt.lab.config.recipes import RECIPES
>>> from sparseopt.lab.training.train import train
>>> summary = train(replace(RECIPES["digits-mlp"], epochs=1, hidden=(32,), every=10))
>>> summary.result["epochs"], len(summary.rows)
(1, 1)
"""

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sparseopt as so
from sparseopt.kernels.frozen.file import dense_file
from sparseopt.lab.config.configfile import checked_config, read_config
from sparseopt.lab.config.differences import contrasted, summarised
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import INTERRUPTED, UserError
from sparseopt.lab.runs.provenance import changes, continued, environment
from sparseopt.lab.runs.row import Row
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.system.files import read_json, write_bytes, write_json
from sparseopt.lab.system.interrupt import StopRequest
from sparseopt.lab.system.ranks import ALONE, Ranks
from sparseopt.lab.training.acceleration import Accelerate, Storage
from sparseopt.lab.training.experiment import Experiment, build
from sparseopt.lab.training.trackers import Tracker, trackers
from sparseopt.lab.training.trainer import Diverged, Observer, Trainer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Summary:
    """What came out of a run."""

    config: Config
    rows: list[Row]
    """One row of metrics an epoch."""
    result: dict[str, Any]
    """What summary.json holds: the final numbers."""
    experiment: Experiment | None
    """The trained network and its masks; None for a run that had been finished before."""


def train(
    config: Config,
    out: Path | None = None,
    *,
    data_dir: Path | None = None,
    device: torch.device | None = None,
    observers: Sequence[Observer] = (),
    checkpoint_seconds: float = 30.0,
    ranks: Ranks = ALONE,
    accelerate: Accelerate = "off",
    storage: Storage | None = None,
    tracker: Sequence[Tracker] = ("tensorboard",),
) -> Summary:
    """Train, or go on training, or report what has been trained already.

    With a folder `out`, the run can be stopped at any moment and goes on from its last checkpoint when it is
    called again; checkpoints are written after every epoch and every `checkpoint_seconds`. Without one,
    nothing is written. With several `ranks`, all of them call; the first one writes and is observed. With
    `accelerate`, sparse layers train on sparse CPU kernels, which round in another order. The metrics of a run
    with a folder also go to each `tracker`. `storage` keeps weights dense or packed; None decides by `accelerate`.
    """
    if out is None:
        place: dict[str, Any] = {"device": device, "data_dir": data_dir, "ranks": ranks}
        trainer = Trainer(build(config, accelerate=accelerate, storage=storage, **place))
        trainer.run(observers)
        return Summary(config, trainer.rows, summarise(trainer), trainer.experiment)
    run = RunDir(out)
    with ExitStack() as held:
        result = ranks.first_does(lambda: _claim(run, config, held))
        if result is not None:
            return Summary(config, _all_rows(run, config), result, None)
        if ranks.first:
            observers = [*trackers(tracker, run), *observers]
        experiment = build(
            config,
            device=device,
            data_dir=data_dir,
            ranks=ranks,
            accelerate=accelerate,
            storage=ranks.first_does(lambda: _storage(run, storage)),
            on_kernels=ranks.first_does(lambda: _on_kernels(run)),
        )
        if ranks.first:
            _record(run, experiment, accelerate)
        return _train_in(run, experiment, observers, checkpoint_seconds)


def summarise(trainer: Trainer) -> dict[str, Any]:
    """The final numbers of a run."""
    experiment, last = trainer.experiment, trainer.rows[-1]
    topology = experiment.topology
    weights = sum(p.numel() for p in experiment.model.parameters() if p.dim() > 1)
    if topology is not None and topology.kind() == "packed":
        weights += topology.size() - topology.active()
    return {
        **{name: value for name, value in last.items() if name != "epoch"},
        "epochs": last["epoch"],
        "best_test_accuracy": max(row["test_accuracy"] for row in trainer.rows),
        "weights": weights,
        "active_weights": weights if topology is None else weights - topology.size() + topology.active(),
    }


def _claim(run: RunDir, config: Config, held: ExitStack) -> dict[str, Any] | None:
    """Become the one who writes this run, as long as the stack is held; the result, if it is complete already."""
    held.enter_context(run.locked())
    _refuse_other_run(run, config)
    return run.summary()


def _all_rows(run: RunDir, config: Config) -> list[Row]:
    """The metrics of a complete run; one whose file was damaged later is not reported on as if it were whole."""
    try:
        rows = run.metrics()
    except UserError:
        rows = []
    if len(rows) != config.epochs:
        raise UserError(
            f"{run.metrics_file} is damaged: {len(rows)} of {config.epochs} epochs of a complete run can be read; remove "
            f"{run.summary_file}, and the same command writes both again from the last checkpoint"
        )
    return rows


def _refuse_other_run(run: RunDir, config: Config) -> None:
    """A folder that holds a run goes on with that one, and with no other configuration."""
    there = _config_there(run)
    if there is not None and (differences := contrasted(there.in_force(), config.in_force())):
        raise UserError(f"{run.path} holds another run ({summarised(differences)}); choose another --out")


def _config_there(run: RunDir) -> Config | None:
    """What a folder holds a run of; where config.json is gone, the checkpoint tells."""
    if run.config_file.exists():
        return read_config(run.config_file)
    state = run.checkpoints.load(torch.device("cpu"))
    if state is None:
        return None
    if not isinstance(state.get("config"), dict):
        raise UserError(
            f"{run.path} has checkpoints, but no config.json that tells of what run; put it back, or choose another --out"
        )
    return checked_config(state["config"], run.checkpoints.folder)


def record(experiment: Experiment, accelerate: Accelerate = "off") -> dict[str, Any]:
    """What config.json holds: what is trained, what it reads and tells, and on what."""
    config, topology = experiment.config, experiment.topology
    of_masks: dict[str, Any] = {}  # a dense network has none, and is not another environment for that
    if topology is not None:
        layers = list(so.kernels.accelerated_layers(experiment.model, waiting=True))
        of_masks = {"storage": topology.kind(), "on_kernels": layers}
    return {
        "config": config.to_json(),
        "name": config.run_name,
        "input": list(experiment.data.shape),
        "classes": experiment.data.classes,
        **environment(experiment.device),
        "ranks": experiment.ranks.size,
        "accelerate": accelerate,
        **of_masks,
    }


def _on_kernels(run: RunDir) -> list[str] | None:
    """The layers that ran on the sparse kernels when the run began; None if it has not begun."""
    return read_json(run.config_file).get("on_kernels") if run.config_file.exists() else None


def _storage(run: RunDir, asked: Storage | None) -> Storage | None:
    """The storage a run began with, which its checkpoints are of; what is asked for, if it has not begun."""
    began = read_json(run.config_file).get("storage") if run.config_file.exists() else None
    if began is not None and asked is not None and began != asked:
        raise UserError(
            f"{run.path} holds a run with {began} storage, and goes on in that; ask for no other, or choose another --out"
        )
    return began or asked


def _record(run: RunDir, experiment: Experiment, accelerate: Accelerate) -> None:
    """Write down what is trained and on what. Of a run that goes on the record stays; what has changed is told, and added."""
    here = record(experiment, accelerate)
    if not run.config_file.exists():
        write_json(run.config_file, here)
        return
    there = read_json(run.config_file)
    changed = changes(there, here)
    for change in changed:
        log.warning("%s goes on, but %s: the bits may not be those of an uninterrupted run", run.path, change)
    if changed:
        write_json(run.config_file, continued(there, here, run.checkpoints.newest_step()))


def _train_in(
    run: RunDir, experiment: Experiment, observers: Sequence[Observer], checkpoint_seconds: float
) -> Summary:
    ranks, trainer = experiment.ranks, Trainer(experiment)
    if (state := run.checkpoints.load(experiment.device)) is not None:
        trainer.load_state_dict(state)
    if not ranks.first:
        trainer.run()
    else:
        _train_and_keep(run, trainer, observers, checkpoint_seconds)
    return Summary(experiment.config, trainer.rows, summarise(trainer), experiment)


def _train_and_keep(
    run: RunDir, trainer: Trainer, observers: Sequence[Observer], checkpoint_seconds: float
) -> None:
    run.write_metrics(trainer.rows)
    run.diverged_file.unlink(missing_ok=True)
    stop = StopRequest()
    keeper = Keeper(run, checkpoint_seconds, stop)
    # Ranks cannot stop one by one after a step: with several, a signal ends them at once, as a crash would.
    listening = stop.listening() if trainer.experiment.ranks.size == 1 else nullcontext()
    try:
        with listening:
            trainer.run([*observers, keeper])
    except Diverged as error:
        write_json(run.diverged_file, {"step": error.step, "reason": str(error)})
        raise
    save_model(trainer.experiment, run.model_file)
    write_json(run.summary_file, summarise(trainer))


def save_model(experiment: Experiment, path: Path) -> None:
    """The final network as an ordinary dense one, zeros included, loadable without this library, masks in its metadata."""
    masks = {} if experiment.topology is None else dict(experiment.topology.masks)
    write_bytes(path, dense_file(experiment.model.state_dict(), masks))


class Keeper(Observer):
    """Keeps a run on disk: a row of metrics and a checkpoint after every epoch, and checkpoints in between."""

    def __init__(self, run: RunDir, seconds: float, stop: StopRequest) -> None:
        self._run, self._seconds, self._stop = run, seconds, stop
        self._saved_at = time.monotonic()

    def started(self, trainer: Trainer) -> None:
        self._saved_at = time.monotonic()

    def stepped(self, trainer: Trainer) -> None:
        if self._stop.made or time.monotonic() - self._saved_at >= self._seconds:
            self._save(trainer)
        if self._stop.made:
            raise self._farewell(trainer)

    def epoch_ended(self, trainer: Trainer, row: Row, losses: Tensor) -> None:
        self._run.append_metrics(row)
        self._save(trainer)
        if self._stop.made and trainer.step < trainer.total_steps:
            raise self._farewell(trainer)

    def _save(self, trainer: Trainer) -> None:
        trainer.check_finite()  # what is kept is always a state that one can go on from
        self._run.checkpoints.save(trainer.step, trainer.state_dict())
        self._saved_at = time.monotonic()

    def _farewell(self, trainer: Trainer) -> UserError:
        return UserError(
            f"stopped after step {trainer.step} of {trainer.total_steps} and saved; the same command goes on from there",
            exit_code=INTERRUPTED,
        )
