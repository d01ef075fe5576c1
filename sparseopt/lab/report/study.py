"""Runs looked at together: which of them differ in their seed alone, and in what the others differ."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sparseopt.lab.config.differences import described, differing
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.catalogue import Run

Settings = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed, in the order of their seeds."""

    settings: Settings
    """Those in force, the seed left out."""
    label: str
    """The settings that tell this group from the others."""
    runs: list[Run]

    @property
    def finished(self) -> list[Run]:
        """The runs whose numbers count: a schedule that is not over yet says nothing about its end."""
        return [run for run in self.runs if run.state == "finished" and run.rows]


class Study:
    """All runs of a report, grouped; refused where their numbers cannot stand in one table."""

    def __init__(self, runs: Sequence[Run]) -> None:
        _refuse_several_data_sets(runs)
        self.groups = grouped(runs, apart_from=("seed",))
        self.runs = [run for group in self.groups for run in group.runs]

    @cached_property
    def names(self) -> dict[Path, str]:
        """What each run is called on the page: its path below the folder that all of them are in."""
        shared = os.path.commonpath([run.path.absolute().parent for run in self.runs])
        return {run.path: os.path.relpath(run.path.absolute(), shared) for run in self.runs}

    @cached_property
    def settings(self) -> list[Settings]:
        """The settings in force of every run."""
        return [run.config.in_force() for run in self.runs]

    @cached_property
    def environments(self) -> list[Settings]:
        """What every run ran on, versions first."""
        return [_flat(run.environment) for run in self.runs]


def grouped(runs: Sequence[Run], *, apart_from: Sequence[str]) -> list[Group]:
    """Runs that agree in all settings but these, sorted by the settings in which the groups differ."""
    found: dict[str, tuple[Settings, list[Run]]] = {}
    for run in runs:
        settings = {name: value for name, value in run.config.in_force().items() if name not in apart_from}
        found.setdefault(json.dumps(settings), (settings, []))[1].append(run)
    names = differing([settings for settings, _ in found.values()])
    groups = [
        Group(settings, _label(settings, names, members[0]), sorted(members, key=lambda run: run.config.seed))
        for settings, members in found.values()
    ]
    return sorted(groups, key=lambda group: [order(group.settings.get(name)) for name in names])


def order(value: Any) -> tuple[int, float, str]:
    """What a setting is sorted by: nothing at all first, then numbers by size, then words."""
    if value is None:
        return 0, 0.0, ""
    return (1, float(value), "") if isinstance(value, int | float) else (2, 0.0, str(value))


def _label(settings: Settings, names: Sequence[str], run: Run) -> str:
    told = described({name: settings[name] for name in names if name in settings})
    return told or f"{run.config.recipe}, {run.config.method}"


def _flat(environment: Mapping[str, Any]) -> Settings:
    rest = dict(environment)
    versions = rest.pop("versions", None)
    return {**(versions if isinstance(versions, dict) else {}), **rest}


def _refuse_several_data_sets(runs: Sequence[Run]) -> None:
    counts = Counter(run.config.data for run in runs)
    if len(counts) < 2:
        return
    examples = {run.config.data: run.path for run in reversed(runs)}
    held = " and ".join(f"{data} ({count}, such as {examples[data]})" for data, count in counts.items())
    raise UserError(
        f"these are runs on {held}, whose accuracies cannot be compared: "
        "keep the runs of each data set in a folder of its own, and name one of the folders"
    )
