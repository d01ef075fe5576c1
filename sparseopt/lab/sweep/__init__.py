"""Many runs as one piece of work: every one of them trained once, by however many workers on however many machines.

The work is an Optuna study, a run is a trial of it:

    grid, space             what the command line asks for
    plan, definition        the trials a study must have, and what makes it this sweep
    database, patience      where the study lives, and what happens while it is away
    trials                  who works on which trial: claimed, alive, given back, complete once
    worker, pulse           a process that trains trials, and its sign of life
    crew, watch, conduct    the process that a person started: it starts workers, and notices which have died
    progress, display, results what the person sees
"""

from collections.abc import Sequence
from pathlib import Path

from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.show.terminal import Terminal
from sparseopt.lab.sweep.conduct import conduct
from sparseopt.lab.sweep.database import Database, beside
from sparseopt.lab.sweep.definition import Definition
from sparseopt.lab.sweep.job import Job
from sparseopt.lab.sweep.plan import Runs
from sparseopt.lab.sweep.results import report_failures
from sparseopt.lab.training.place import Place

__all__ = ["run_configs"]


def run_configs(
    configs: Sequence[Config],
    folder: Path,
    *,
    name: str,
    workers: int = 1,
    storage: str | None = None,
    place: Place,
) -> list[Run]:
    """Train every configuration in `folder / "runs" / config.run_name`; the runs in the order of the configurations.

    The work is kept in an Optuna study called `name`, in `folder / "study.db"` or in the database `storage`. What is half
    done goes on from its checkpoint, and a run whose folder is complete counts as done, whoever trained it. `workers`
    processes share the work here, and with whoever calls this on the same study elsewhere. A run that diverges is
    logged, and returned like the others: its `state` tells. UserError if a run could not be trained; with the exit code
    130 if a stop was requested. The same call goes on.

    Workers are new processes that import the main module: a script that calls this does so under
    `if __name__ == "__main__":`.
    """
    plan = Runs.of(configs, Definition("runs"))
    job = Job(Database(storage or beside(folder)), name, plan, folder, place)
    outcome = conduct(job, workers, Terminal())
    report_failures(outcome)
    if outcome.refused:
        run, reason = next(iter(outcome.refused.items()))
        raise UserError(f"{len(outcome.refused)} runs could not be trained; {run}: {reason}")
    paths = [job.run_dir(config.run_name) for config in configs]
    return [Run.read(path) for path in paths if path.exists()]
