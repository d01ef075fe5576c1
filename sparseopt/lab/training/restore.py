"""A run brought back from its folder: the network, its masks and its optimizer as they were at the last checkpoint.

Nothing in the folder is changed, so a run may be looked at while it is being trained.
"""

from pathlib import Path

import torch

from sparseopt.lab.config.configfile import read_config
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.system.files import read_json
from sparseopt.lab.training.experiment import build
from sparseopt.lab.training.trainer import Trainer


def restore(path: Path, *, data_dir: Path | None = None, device: torch.device | None = None) -> Trainer:
    """The trainer of a run, at its last checkpoint: `.experiment` has model, topology, optimizer and data."""
    run = RunDir(path)
    if not run.config_file.exists():
        raise UserError(f"{path} is not the folder of a run: it has no config.json")
    place = {"device": device, "data_dir": data_dir}
    storage = read_json(run.config_file).get("storage")
    trainer = Trainer(build(read_config(run.config_file), storage=storage, **place))
    state = run.checkpoints.load(trainer.experiment.device)
    kept = next((file for file in (run.model_file, run.packed_file) if file.exists()), None)
    if state is None and kept is not None:
        raise UserError(f"{path} is complete and has no checkpoints; its network is {kept}")
    if state is None:
        raise UserError(f"{path} has no checkpoint yet; train for longer")
    trainer.load_state_dict(state)
    return trainer


def with_dense_storage(trainer: Trainer, data_dir: Path | None = None) -> Trainer:
    """The same network and masks with weights in their dense shape, for what looks at inactive ones; a fresh optimizer."""
    before = trainer.experiment
    if before.topology is None or before.topology.kind() == "dense":
        return trainer
    place = {"device": before.device, "data_dir": data_dir}
    twin = Trainer(build(before.config, storage="dense", **place))
    assert twin.experiment.topology is not None
    twin.experiment.topology.load_state_dict(before.topology.state_dict())
    twin.experiment.model.load_state_dict(before.model.state_dict())
    twin.epoch, twin.batch = trainer.epoch, trainer.batch
    return twin
