"""What runs there are in a folder, and how far each of them is."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sparseopt.lab.config.configfile import read_config
from sparseopt.lab.config.differences import described, differing
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.row import Row
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.system.files import read_json

log = logging.getLogger(__name__)

State = Literal["finished", "running", "diverged", "stopped"]

METRICS = (
    "epoch",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "mean_train_loss",
    "sparsity",
)
METRICS += ("itop_rate", "dead_neurons", "fan_in_spread", "factor_spread", "seconds")
"""What every row of metrics tells: those who show runs rely on it."""

EXPORTED = "exported_by"
"""What the config.json of an exported network has, and that of a run has not."""

MARKS = ("config.json", "metrics.jsonl")
"""Files by which the folder of a run is known, also where one of them is missing."""


@dataclass(frozen=True)
class Run:
    """A run as its folder shows it."""

    path: Path
    config: Config
    rows: list[Row]
    state: State
    environment: Mapping[str, Any] = field(default_factory=dict)
    """What it ran on, as its config.json tells: versions, revision, device."""

    @property
    def last(self) -> Row:
        """The newest metrics; empty before the first epoch is complete."""
        return self.rows[-1] if self.rows else {}

    @classmethod
    def read(cls, path: Path) -> "Run":
        """Read a run's folder; the run may be in progress."""
        folder = RunDir(path)
        if not folder.config_file.exists():
            raise UserError(f"{path} is not the folder of a run: it has no config.json")
        config = read_config(folder.config_file)
        record = read_json(folder.config_file)
        environment = {name: value for name, value in record.items() if name not in ("config", "name")}
        return cls(path, config, _checked(folder), _state(folder), environment)


@dataclass(frozen=True)
class Survey:
    """What a folder holds: the runs, by name, and for each that cannot be read a sentence why."""

    runs: list[Run]
    left_out: list[str]


def survey(folder: Path) -> Survey:
    """Read all runs in a folder and the folders below it. What cannot be read is logged and left out."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; name the one that holds the runs")
    found = Survey([], [])
    for path in sorted({file.parent for name in MARKS for file in folder.rglob(name)}):
        try:
            if not _exported(path):
                found.runs.append(Run.read(path))
        except (UserError, OSError) as error:  # a damaged run, or the config.json of something else
            log.warning("left out: %s", error)
            found.left_out.append(str(error))
    return found


def _exported(path: Path) -> bool:
    file = RunDir(path).config_file
    return file.exists() and EXPORTED in read_json(file)


def find_runs(folder: Path) -> list[Run]:
    """All runs in a folder and the folders below it, by name. What cannot be read is reported and left out."""
    return survey(folder).runs


def labels(runs: list[Run]) -> list[str]:
    """A short name for each run: the settings in which they differ, else the names of their folders."""
    settings = [run.config.in_force() for run in runs]
    names = differing(settings)
    short = [described({name: each[name] for name in names if name in each}) for each in settings]
    return short if names and len(set(short)) == len(runs) else [run.path.name for run in runs]


def unusual(run: Run) -> str:
    """The settings in which a run departs from its recipe and which its name does not tell."""
    return described(run.config.unusual())


def _checked(folder: RunDir) -> list[Row]:
    """The rows of metrics, refused where one of them is not what a run writes."""
    rows = folder.metrics()
    for number, row in enumerate(rows, start=1):
        complete = isinstance(row, dict) and all(type(row.get(name)) in (int, float) for name in METRICS)
        if not complete or row["epoch"] != number:
            raise UserError(
                f"{folder.metrics_file} is damaged (line {number} is not the row of epoch {number}); "
                "going on with the run repairs it"
            )
    return rows


def _state(folder: RunDir) -> State:
    if folder.running():
        return "running"
    if folder.summary_file.exists():
        return "finished"
    return "diverged" if folder.diverged_file.exists() else "stopped"
