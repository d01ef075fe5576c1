"""Runs without their folders: what tables, curves and reports need of a run that has ended, a line each in one file.

A run's folder holds checkpoints and weights, and stays on the machine that trained it. Its settings, what it ran on, its
metrics and the densities of its layers in the end are a few kilobytes: they can be sent, committed beside the results made of
them, and counted by whoever goes on elsewhere.

    {"name": ..., "state": "finished", "record": what config.json holds, "metrics": {"epoch": [1, 2, ...], "train_loss": ...},
     "densities": {"fc.weight": 0.05, ...}}
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.row import Row
from sparseopt.lab.system.files import parse_json, write_bytes

FILE = "runs.jsonl"
LONGEST = 200  # characters of a name

Ended = Literal["finished", "diverged"]
ENDED: tuple[Ended, ...] = ("finished", "diverged")


@dataclass(frozen=True)
class Archived:
    """One line of the file."""

    name: str
    state: Ended
    record: dict[str, Any]
    rows: list[Row]
    densities: dict[str, float]


def write_archive(path: Path, runs: Iterable[Archived]) -> None:
    """Write the file, or replace it."""
    write_bytes(path, "".join(_line(run) + "\n" for run in runs).encode())


def lines(path: Path) -> list[tuple[str, str]]:
    """The lines of a file, each behind a word on where it stands."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    numbered = enumerate(text.split("\n"), start=1)
    return [(f"line {number} of {path}", line) for number, line in numbered if line.strip()]


def parsed(line: str, where: str) -> Archived:
    """The run in a line, which may come from anywhere."""
    try:
        return _parsed(parse_json(line))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{where} is not a run as sparseopt archives it ({error!r:.80})") from error


def _line(run: Archived) -> str:
    names = list(dict.fromkeys(name for row in run.rows for name in row))
    metrics = {name: [row.get(name) for row in run.rows] for name in names}
    line = {"name": run.name, "state": run.state, "record": run.record, "metrics": metrics}
    return json.dumps(line | {"densities": run.densities})


def _parsed(line: Any) -> Archived:
    name, state, record, metrics = (line[key] for key in ("name", "state", "record", "metrics"))
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST):
        raise ValueError("no name")
    if Path(name).name != name or name == "..":
        raise ValueError("a name that is a path")
    if state not in ENDED or not isinstance(record, dict):
        raise ValueError("no state and record")
    columns = [
        [(name, value) for value in values] for name, values in metrics.items() if isinstance(values, list)
    ]
    rows = [{name: value for name, value in row if value is not None} for row in zip(*columns, strict=True)]
    densities = {str(layer): float(share) for layer, share in line.get("densities", {}).items()}
    if not all(0 <= share <= 1 for share in densities.values()):
        raise ValueError("densities that are no shares")
    return Archived(name, state, record, rows, densities)
