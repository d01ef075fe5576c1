"""What runs there are in a folder, and how far each of them is."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparseopt.lab.cli import UserError
from sparseopt.lab.configfile import read_config
from sparseopt.lab.metrics import Row
from sparseopt.lab.recipes import Config
from sparseopt.lab.rundir import RunDir

log = logging.getLogger(__name__)

State = Literal["finished", "running", "diverged", "stopped"]


@dataclass(frozen=True)
class Run:
    """A run as its folder shows it."""

    path: Path
    config: Config
    rows: list[Row]
    state: State

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
        return cls(path, read_config(folder.config_file), folder.metrics(), _state(folder))


def find_runs(folder: Path) -> list[Run]:
    """All runs in a folder and the folders below it, by name. What cannot be read is reported and left out."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; name the one that holds the runs")
    found = []
    for file in sorted(folder.rglob("config.json")):
        try:
            found.append(Run.read(file.parent))
        except UserError as error:  # a damaged run, or the config.json of something else
            log.warning("left out: %s", error)
    return found


def labels(runs: list[Run]) -> list[str]:
    """A short name for each run: the settings in which they differ, else the names of their folders."""
    settings: list[dict[str, Any]] = [run.config.to_json() for run in runs]
    differing = [name for name in settings[0] if any(each[name] != settings[0][name] for each in settings)]
    short = [
        ", ".join(_setting(name, each[name]) for name in differing if run.config.applies(name))
        for run, each in zip(runs, settings, strict=True)
    ]
    return short if differing and len(set(short)) == len(runs) else [run.path.name for run in runs]


def _setting(name: str, value: Any) -> str:
    """A setting in as few words as tell what it is: `rigl`, but `lr 0.1` and `no ham`."""
    words = name.replace("_", " ")
    if value is None or value is False:
        return f"no {words}"
    if value is True:
        return words
    return value if isinstance(value, str) else f"{words} {value}"


def _state(folder: RunDir) -> State:
    if folder.running():
        return "running"
    if folder.summary_file.exists():
        return "finished"
    return "diverged" if folder.diverged_file.exists() else "stopped"
