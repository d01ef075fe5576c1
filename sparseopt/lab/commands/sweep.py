"""`sparseopt sweep`: every combination of some settings, or a search over them, on any number of workers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sparseopt.lab.cli.command import report
from sparseopt.lab.cli.recipe import Command, call
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.show.terminal import wide_console
from sparseopt.lab.sweep.conduct import SweepOutcome, conduct
from sparseopt.lab.sweep.database import Database, beside
from sparseopt.lab.sweep.definition import Definition
from sparseopt.lab.sweep.grid import points, read_grid
from sparseopt.lab.sweep.job import DEAD_AFTER, HEARTBEAT, Job
from sparseopt.lab.sweep.patience import PATIENCE
from sparseopt.lab.sweep.plan import Plan, Runs, Search, described
from sparseopt.lab.sweep.results import best_first, failed, report_failures, results_table
from sparseopt.lab.sweep.space import corners, read_space
from sparseopt.lab.training.place import Place

PROG = "sparseopt sweep"
SOME_FAILED = 3
BEATS_BEFORE_DEATH = 3

Several = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


@dataclass(frozen=True)
class SweepOptions(Place):
    """What is swept, and where it happens."""

    grid: Several = ()
    """KEY=A,B,...: train with each of these values, in every combination with the other grids; may be repeated."""
    search: Several = ()
    """KEY=log:A:B, KEY=uniform:A:B or KEY=A|B|C: let a sampler look for the highest test accuracy; may be repeated."""
    trials: int | None = None
    """How many runs a search has."""
    workers: int = 1
    """Processes here that share the work, each with its part of the CPU threads."""
    out: Path | None = None
    """Folder of the sweep, runs in its folder runs/; None: sweeps/RECIPE."""
    storage: str | None = None
    """Database of the study, for workers on several machines: postgresql://USER@HOST/NAME; None: study.db in the folder."""
    name: str | None = None
    """Name of the study; None: that of the folder."""
    retry_failed: bool = False
    """Try those runs of a grid again that have failed."""
    heartbeat: float = HEARTBEAT
    """Seconds between two signs of life of a worker."""
    dead_after: float = DEAD_AFTER
    """Seconds without one after which another worker goes on with its run."""
    patience: float = PATIENCE
    """Seconds to wait for a database that does not answer."""
    config: Path | None = None
    """Take the defaults of all settings from the config.json of a run instead of from a recipe."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("workers", "trials"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} must be at least 1, got {value}")
        if not self.patience >= 0:
            raise UserError(f"--patience must be at least 0 seconds, got {self.patience:g}")
        if not 0 < self.heartbeat * BEATS_BEFORE_DEATH <= self.dead_after:
            raise UserError(
                f"--dead-after must be at least {BEATS_BEFORE_DEATH} times --heartbeat, which must be greater than 0, "
                f"got {self.dead_after:g} and {self.heartbeat:g}"
            )


def main(argv: list[str]) -> int:
    """Sweep what the command line says."""
    return report(PROG, lambda: call(PROG, argv, _command))


def _command(defaults: Config) -> Command:
    def command(settings: Config = defaults, options: SweepOptions = SweepOptions()) -> int:  # noqa: B008 - immutable
        """Train many runs, one for each combination of --grid values, or as many as a --search may try; the same command goes
        on with a sweep that was stopped, and joins it from another machine."""
        plan, columns = _plan(settings, defaults, options)
        folder = options.out or Path("sweeps") / settings.recipe
        database = Database(options.storage or beside(folder), options.patience)
        job = Job(database, options.name or folder.resolve().name, plan, folder, options, options.heartbeat)
        console = wide_console()
        print(f"study {job.name} in {database} -> {folder}")
        outcome = conduct(job, options.workers, console, options.dead_after)
        trials = best_first(outcome.trials) if options.search else outcome.trials
        console.print(results_table(trials, plan, columns), highlight=False)
        report_failures(outcome)
        _further(job)
        return _verdict(outcome)

    return command


def _plan(settings: Config, defaults: Config, options: SweepOptions) -> tuple[Plan, tuple[str, ...]]:
    """What the options ask for, and the settings it varies."""
    grid, space = read_grid(options.grid), read_space(options.search)
    for name in {*grid, *space}:
        if getattr(settings, name) != getattr(defaults, name):
            flag = name.replace("_", "-")
            raise UserError(
                f"--{flag} and --{'grid' if name in grid else 'search'} {name} both decide {name}; give one"
            )
    if grid and space:
        raise UserError(
            "--grid and --search do not go together; search once for each value, with the value as an option and its own "
            "--out: a fair comparison gives each the same --trials"
        )
    if grid:
        if options.trials is not None:
            raise UserError("--trials is for --search; a grid has as many runs as combinations")
        definition = Definition.of("grid", settings, tuple(grid), {})
        varied = tuple(grid)
        return Runs.of(points(settings, grid), definition, varied, retry_failed=options.retry_failed), varied
    if not space:
        raise UserError(
            "nothing to sweep; give --grid sparsity=0.9,0.95 or --search lr=log:0.01:0.5 --trials 30"
        )
    return _search(settings, options), tuple(space)


def _search(settings: Config, options: SweepOptions) -> Search:
    space = read_space(options.search)
    if options.trials is None:
        raise UserError("--search needs --trials, the number of runs it may try")
    if options.retry_failed:
        raise UserError(
            "--retry-failed is for --grid; a search learns from what failed, and tries other values"
        )
    points(settings, corners(space))  # refuses a range that leaves what the setting can be
    definition = Definition.of("search", settings, tuple(space), described(space))
    return Search(settings, space, options.trials, definition)


def _further(job: Job) -> None:
    print(f"the runs: sparseopt runs {job.folder}; the report: sparseopt report {job.folder}")
    print(f"the study: optuna-dashboard {job.database}")


def _verdict(outcome: SweepOutcome) -> int:
    """The exit code; UserError if runs wait for somebody to remove what they cannot be trained with."""
    if outcome.refused:
        told = "; ".join(f"{run}: {reason}" for run, reason in list(outcome.refused.items())[:3])
        more = "; ..." if len(outcome.refused) > 3 else ""
        raise UserError(f"{len(outcome.refused)} of the runs could not be trained: {told}{more}")
    return SOME_FAILED if failed(outcome) else 0
