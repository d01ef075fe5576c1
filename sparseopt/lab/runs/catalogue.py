"""What runs there are in a folder, as folders or archived, and how far each of them is."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from sparseopt.lab.config.configfile import checked_config, read_config
from sparseopt.lab.config.differences import described, differing
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.archive import ENDED, FILE, Archived, read_archive, write_archive
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
    """A run as its folder shows it, or as it was archived: then `path` is where its folder would be."""

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
        environment = _environment(read_json(folder.config_file))
        problem = "is damaged ({}); going on with the run repairs it"
        rows = _checked(folder.metrics(), f"{folder.metrics_file} {problem}")
        return cls(path, config, rows, _state(folder), environment)

    @classmethod
    def of(cls, archived: Archived, file: Path) -> "Run":
        """An archived run."""
        config = archived.record.get("config")
        if not isinstance(config, dict):
            raise UserError(f"{archived.name} in {file} has no configuration")
        rows = _checked(archived.rows, f"{archived.name} in {file} is damaged ({{}})")
        settings = checked_config(config, file)
        return cls(file.parent / archived.name, settings, rows, archived.state, _environment(archived.record))


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
        with _leaving_out(found):  # a damaged run, or the config.json of something else
            if not _exported(path):
                found.runs.append(Run.read(path))
    for file in sorted(folder.rglob(FILE)):
        with _leaving_out(found):
            archived = [Run.of(each, file) for each in read_archive(file)]
            there = {
                (run.path.name, run.config) for run in found.runs
            }  # archived beside its folder, or twice
            found.runs.extend(run for run in archived if (run.path.name, run.config) not in there)
    return found


@contextlib.contextmanager
def _leaving_out(found: Survey) -> Iterator[None]:
    try:
        yield
    except (UserError, OSError) as error:
        log.warning("left out: %s", error)
        found.left_out.append(str(error))


def archive(runs: Iterable[Run], path: Path) -> None:
    """Write those that have ended to a file."""
    write_archive(
        path,
        [
            Archived(run.path.name, run.state, {"config": asdict(run.config), **run.environment}, run.rows)
            for run in runs
            if run.state in ENDED
        ],
    )


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


def _environment(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("config", "name")}


def _checked(rows: list[Row], problem: str) -> list[Row]:
    """Rows of metrics, refused where one of them is not what a run writes; `problem` says so, with a place for what is wrong."""
    for number, row in enumerate(rows, start=1):
        complete = isinstance(row, dict) and all(type(row.get(name)) in (int, float) for name in METRICS)
        if not complete or row["epoch"] != number:
            raise UserError(problem.format(f"line {number} is not the row of epoch {number}"))
    return rows


def _state(folder: RunDir) -> State:
    if folder.running():
        return "running"
    if folder.summary_file.exists():
        return "finished"
    return "diverged" if folder.diverged_file.exists() else "stopped"
