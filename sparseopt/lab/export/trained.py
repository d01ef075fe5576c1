"""The network of a run, as far as it has been trained, for whoever wants to use it.

Of a complete run its config.json and model.safetensors are enough: neither its data nor its checkpoints need be there any more.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch import nn

import sparseopt as so
from sparseopt.kernels.frozen.file import read
from sparseopt.lab.config.configfile import read_config
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.system.files import read_json
from sparseopt.lab.training.experiment import Experiment, build_model
from sparseopt.lab.training.restore import restore, with_dense_storage


@dataclass(frozen=True)
class Trained:
    """A network with its masks, weights in their dense shape, and what it reads and tells."""

    config: Config
    model: nn.Module
    topology: so.Topology | None
    shape: tuple[int, ...]
    """Of one image; of a text, how many characters."""
    classes: int
    """How many scores come out; of a text, how many characters there are."""

    @classmethod
    def of(cls, experiment: Experiment) -> Self:
        """What has been trained here, in this process."""
        data = experiment.data
        return cls(experiment.config, experiment.model, experiment.topology, data.shape, data.classes)

    @property
    def symbols(self) -> int | None:
        """How many characters there are, if it reads text."""
        return self.classes if self.config.data == "text" else None


def trained(folder: Path, data_dir: Path | None = None) -> Trained:
    """The final network of a run, or that of its last checkpoint, for which its data must be there."""
    run = RunDir(folder)
    if run.config_file.exists() and run.summary() is not None and run.model_file.exists():
        size = input_and_classes(run)
        if size is not None:
            return _final(run, *size)
    return Trained.of(with_dense_storage(restore(folder, data_dir=data_dir), data_dir).experiment)


def _final(run: RunDir, shape: tuple[int, ...], classes: int) -> Trained:
    config = read_config(run.config_file)
    model = build_model(config, shape, classes)
    try:
        if config.method != "dense":
            return Trained(config, model, so.load(run.model_file, model), shape, classes)
        model.load_state_dict(read(run.model_file).state)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{run.model_file} is not the network of {run.config_file}: {error}") from error
    return Trained(config, model, None, shape, classes)


def input_and_classes(run: RunDir) -> tuple[tuple[int, ...], int] | None:
    """What the record of a run says of its data; None in runs of older versions, which did not write it down."""
    record = read_json(run.config_file)
    shape, classes = record.get("input"), record.get("classes")
    if shape is None or classes is None:
        return None
    sizes = [*shape, classes] if isinstance(shape, list) and shape else [shape]
    if not all(type(size) is int and size >= 1 for size in sizes):
        raise UserError(
            f"{run.config_file} says input {shape!r:.80} and classes {classes!r:.80}, which are no sizes"
        )
    return tuple(shape), classes
