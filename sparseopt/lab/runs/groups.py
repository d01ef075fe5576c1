"""Runs that belong together: those that differ in nothing but their seed, and what tells the groups apart."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparseopt.lab.config.differences import described, differing
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
        """The runs whose numbers count."""
        return [run for run in self.runs if run.complete]


def grouped(runs: Sequence[Run], *, apart_from: Sequence[str] = ("seed",)) -> list[Group]:
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
