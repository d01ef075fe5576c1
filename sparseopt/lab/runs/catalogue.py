"""What runs there are in a folder, as folders or archived, and how far each of them is."""

import contextlib
import itertools
import logging
import math
import os
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sparseopt.lab.config.configfile import checked_config, read_config
from sparseopt.lab.config.differences import described, differing
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.archive import ENDED, FILE, Archived, Ended, lines, parsed, write_archive
from sparseopt.lab.runs.row import Row
from sparseopt.lab.runs.rundir import REPAIR, RunDir
from sparseopt.lab.system.files import alone_in, read_json

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
    archived: bool = False
    """There is no folder: neither weights nor checkpoints."""
    densities: Mapping[str, float] = field(default_factory=dict)
    """Of the layers in the end, as archived; a run that has its folder has masks there."""

    @property
    def complete(self) -> bool:
        """Do its numbers count? A run that is not over yet, or has lost its last rows, says nothing about its end."""
        return self.state == "finished" and len(self.rows) == self.config.epochs

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
        rows = folder.metrics()
        if wrong := _wrong(rows):
            raise UserError(f"{folder.metrics_file} is damaged ({wrong}); {REPAIR}")
        return cls(path, config, rows, _state(folder), environment)

    @classmethod
    def of(cls, archived: Archived, file: Path) -> "Run":
        """An archived run."""
        config = archived.record.get("config")
        if not isinstance(config, dict):
            raise UserError(f"{archived.name} in {file} has no configuration")
        if wrong := _wrong(archived.rows):
            raise UserError(f"{archived.name} in {file} is damaged ({wrong})")
        try:
            settings = checked_config(config, file)
        except UserError as error:
            raise UserError(f"{archived.name} in {file} cannot be: {error}") from error
        environment = _environment(archived.record)
        return cls(
            *(file.parent / archived.name, settings, archived.rows, archived.state, environment),
            archived=True,
            densities=archived.densities,
        )


@dataclass(frozen=True)
class Survey:
    """What a folder holds: the runs, by name, archived ones last, and for each that cannot be read a sentence why."""

    runs: list[Run]
    left_out: list[str]


def survey(folder: Path) -> Survey:
    """Read all runs in a folder and the folders below it. What cannot be read is logged and left out."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; name the one that holds the runs")
    found = Survey([], [])
    below = sorted(_folders(folder))
    originals: dict[Hashable, Path] = {}
    for path in below:
        with _leaving_out(found):  # a damaged run, or the config.json of something else
            if any((path / name).exists() for name in MARKS) and not _exported(path):
                run = Run.read(path)
                original = originals.setdefault(_identity(run), path)
                if run.rows and original != path:
                    raise UserError(f"{path} is a copy of {original}")
                found.runs.append(run)
    for path in below:
        if (path / FILE).exists():
            _add_archived(path / FILE, found)
    return found


def _folders(folder: Path) -> Iterator[Path]:
    """A folder and all below it, once each, also behind links."""
    seen: set[Path] = set()
    for path, below, _ in os.walk(folder, followlinks=True):
        real = Path(path).resolve()
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        yield Path(path)


def _add_archived(file: Path, found: Survey) -> None:
    """The runs of a file, but for those whose folders, or other lines, were found already."""
    there = {_identity(run) for run in found.runs}
    paths = {run.path for run in found.runs}
    with _leaving_out(found):
        for where, line in lines(file):
            with _leaving_out(found):
                run = Run.of(parsed(line, where), file)
                if _identity(run) not in there:
                    there.add(_identity(run))
                    run = replace(run, path=_free(run.path, paths))
                    paths.add(run.path)
                    found.runs.append(run)


def _identity(run: Run) -> Hashable:
    """The same for a run and its copies. The same settings on another machine are another run."""
    return run.config, len(run.rows), tuple(sorted(run.last.items()))


def _free(path: Path, taken: Collection[Path]) -> Path:
    """The path, or the first of the same name with a number that is not taken."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if each not in taken)


@contextlib.contextmanager
def _leaving_out(found: Survey) -> Iterator[None]:
    try:
        yield
    except (UserError, OSError) as error:
        log.warning("left out: %s", error)
        found.left_out.append(str(error))


def archive(runs: Iterable[Run], path: Path) -> None:
    """Add those that have ended to a file, which keeps what it holds."""
    with alone_in(path.parent):
        before = [Run.of(parsed(line, where), path) for where, line in lines(path)] if path.exists() else []
        found: dict[Hashable, Archived] = {}
        for run in (*runs, *before):
            told = found.get(_identity(run))
            if run.state in ENDED and (told is None or not told.densities):
                found[_identity(run)] = _archived(run, run.state)
        write_archive(path, found.values())


def _archived(run: Run, state: Ended) -> Archived:
    record = {"config": asdict(run.config), **run.environment}
    return Archived(run.path.name, state, record, run.rows, dict(run.densities))


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


def _wrong(rows: list[Row]) -> str | None:
    """What is wrong with rows of metrics, if they are not what a run writes."""
    for number, row in enumerate(rows, start=1):
        complete = isinstance(row, dict) and all(type(row.get(name)) in (int, float) for name in METRICS)
        if not complete or row["epoch"] != number or not math.isfinite(row["seconds"]):
            return f"line {number} is not the row of epoch {number}"
    return None


def _state(folder: RunDir) -> State:
    if folder.running():
        return "running"
    if folder.summary_file.exists():
        return "finished"
    return "diverged" if folder.diverged_file.exists() else "stopped"
