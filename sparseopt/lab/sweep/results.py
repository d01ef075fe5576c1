"""What came out of a sweep: a table of its runs, and the ones that failed."""

import logging
from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from sparseopt.lab.config.values import spelled
from sparseopt.lab.show.words import duration
from sparseopt.lab.sweep.conduct import SweepOutcome
from sparseopt.lab.sweep.plan import RUN, Plan
from sparseopt.lab.sweep.trials import REASON, SECONDS

log = logging.getLogger(__name__)


def results_table(trials: Sequence[FrozenTrial], plan: Plan, columns: Sequence[str]) -> Table:
    """A row for each trial: the settings in which they differ, and the test accuracy of the last epoch."""
    table = Table("trial", *columns, "test accuracy", "best", "time", box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[-3:]:
        column.justify = "right"
    for trial in trials:
        settings = plan.settings(trial)
        shown = [spelled(settings[name]) if name in settings else "-" for name in columns]
        table.add_row(str(trial.number), *map(escape, shown), *_numbers(trial))
    return table


def best_first(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """By the test accuracy; those without one at the end."""
    return sorted(
        trials,
        key=lambda trial: -1.0 if trial.state != TrialState.COMPLETE else trial.values[0],
        reverse=True,
    )


def failed(outcome: SweepOutcome) -> list[FrozenTrial]:
    return [trial for trial in outcome.trials if trial.state == TrialState.FAIL]


def report_failures(outcome: SweepOutcome) -> None:
    """Log every run that failed, with its reason."""
    for trial in failed(outcome):
        run = trial.user_attrs.get(RUN, f"trial {trial.number}")
        log.warning("%s failed: %s", run, trial.user_attrs.get(REASON, "reason unknown"))


def _numbers(trial: FrozenTrial) -> tuple[str, str, str]:
    if trial.state != TrialState.COMPLETE:
        return trial.state.name.lower(), "-", "-"
    best = max(trial.intermediate_values.values())
    return f"{trial.values[0]:.2%}", f"{best:.2%}", duration(trial.user_attrs[SECONDS])
