"""A run brought back from its folder: the network, its masks and its optimizer as they were at the last checkpoint.

Nothing in the folder is changed, so a run may be looked at while it is being trained.
"""

from pathlib import Path

import torch

from sparseopt.lab.config.configfile import read_config
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.training.experiment import build
from sparseopt.lab.training.trainer import Trainer


def restore(path: Path, *, data_dir: Path | None = None, device: torch.device | None = None) -> Trainer:
    """The trainer of a run, at its last checkpoint: `.experiment` has model, topology, optimizer and data."""
    run = RunDir(path)
    if not run.config_file.exists():
        raise UserError(f"{path} is not the folder of a run: it has no config.json")
    trainer = Trainer(build(read_config(run.config_file), device=device, data_dir=data_dir))
    state = run.checkpoints.load(trainer.experiment.device)
    if state is None:
        raise UserError(f"{path} has no checkpoint yet; train for longer")
    trainer.load_state_dict(state)
    return trainer
