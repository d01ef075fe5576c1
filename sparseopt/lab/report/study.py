"""Runs looked at together: which of them differ in their seed alone, and in what the others differ."""

import os
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.runs.groups import Settings, grouped
from sparseopt.lab.runs.provenance import in_words


class Study:
    """All runs of a report, grouped; refused where their numbers cannot stand in one table."""

    def __init__(self, runs: Sequence[Run]) -> None:
        _refuse_several_data_sets(runs)
        self.groups = grouped(runs)
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
        return [in_words(run.environment) for run in self.runs]


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
