"""`sparseopt reproduce TARGET`: a table or figure of the paper, or the table of methods, at the scale one can afford."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from sparseopt.lab.cli.command import report
from sparseopt.lab.cli.named import Named
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError, require
from sparseopt.lab.reproduce.grid import Grid
from sparseopt.lab.reproduce.layout import LabelledTable, for_terminal
from sparseopt.lab.reproduce.outcomes import Outcomes, collect, experiment, find
from sparseopt.lab.reproduce.plan import pace_table, plan, runs_table, summary, tuning_summary
from sparseopt.lab.reproduce.scale import Scale, sentence
from sparseopt.lab.reproduce.targets import TARGETS, Target
from sparseopt.lab.reproduce.tuning import Tuning, tuning
from sparseopt.lab.reproduce.write import Results, results, write
from sparseopt.lab.runs.catalogue import survey
from sparseopt.lab.show.terminal import print_table, wide_console
from sparseopt.lab.sweep import run_configs
from sparseopt.lab.training.place import Place

PROG = "sparseopt reproduce"
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclass(frozen=True)
class ReproduceOptions(Place):
    """Where and how: what is trained stays the same but for rounding, which --accelerate bfloat16 makes coarse."""

    out: Path = Path("reproduction")
    """Folder: the runs of all targets are in its `runs`."""
    known: tuple[Path, ...] = ()
    """Folders with runs made elsewhere, or with the runs.jsonl that results hold: what is there is not trained again."""
    results: Path | None = None
    """Folder for the results; None: a folder with the name of the target, beside the runs."""
    workers: int = 1
    """Processes that train here at the same time."""
    storage: str | None = None
    """Database of the study, such as postgresql://...; None: study.db in the folder."""
    reach: float | None = None
    """Test accuracy, in percent, that the epochs are counted to; None: what all runs of a group have reached."""
    dry_run: Flag = False
    """Train nothing: list the runs, and the hours that they would take on this machine, measured from a few steps."""
    tabulate_only: Flag = False
    """Train nothing: the table of the runs that are there, missing ones marked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.workers >= 1, "workers", self.workers, "at least 1")
        percent = self.reach is None or 0 < self.reach < 100
        require(percent, "reach", self.reach, "between 0 and 100 percent")
        if self.dry_run and self.tabulate_only:
            raise UserError(
                "--dry-run tells what is to be trained, --tabulate-only what came of it; give one of them"
            )
        for folder in self.known:
            _check_known(folder)

    @property
    def runs(self) -> Path:
        """Where runs are trained."""
        return self.out / "runs"

    @property
    def places(self) -> tuple[Path, ...]:
        """Where runs may be."""
        return self.runs, *self.known


def _check_known(folder: Path) -> None:
    """What is known must be read whole: what is left out would be trained again, for hours."""
    found = survey(folder)
    if found.left_out:
        raise UserError(f"--known {folder} holds what cannot be read: {found.left_out[0]}")
    if not found.runs:
        raise UserError(f"--known {folder} holds no run, and no runs.jsonl")


def main(argv: list[str]) -> int:
    """Reproduce what the command line names."""
    does = (
        "Trains what is missing of it, and writes the results in the paper's layout, beside the paper's own figures.\n"
        "With --dry-run it lists the runs, and measures the hours that they would take here."
    )
    return report(PROG, lambda: Named(PROG, "target", does, TARGETS).call(argv, _command))


def _command(name: str, target: Target) -> Callable[..., None]:
    def command(scale: Scale = Scale.of(target), place: ReproduceOptions = ReproduceOptions()) -> None:  # noqa: B008 - immutable
        reproduce(Grid(target, scale), place)

    paper = (
        "" if target.of_methods else " The defaults are the paper's; of the number of seeds it says nothing."
    )
    command.__doc__ = f"{target.summary}.{paper}"
    return command


def reproduce(grid: Grid, options: ReproduceOptions) -> None:
    """Train what is missing, and tell what came of it."""
    console = wide_console()
    if options.dry_run:
        tuned = tuning(grid, *options.places) if grid.scale.tune else None
        outcomes = collect(tuned.tuned_grid() if tuned else grid, *options.places)
        _tell_plan(console, outcomes, tuned, options)
        return
    if not options.tabulate_only:
        train_missing(tune(grid, options) if grid.scale.tune else grid, options)
    tuned = tuning(grid, *options.places) if grid.scale.tune else None
    made = results(collect(tuned.tuned_grid() if tuned else grid, *options.places), options.reach, tuned)
    written = write(made, options.results or options.out / grid.target.name)
    _tell(console, made)
    print("\n".join(map(str, written)))


def tune(grid: Grid, options: ReproduceOptions) -> Grid:
    """Train what decides the settings of the rows, and further out as long as that is needed: the grid with what was chosen."""
    search = tuning(grid, *options.places)
    while not search.complete:
        before = search.done
        train_configs(grid.target, search.configs(), options)
        search = tuning(grid, *options.places)
        if search.done == before:
            raise UserError(
                f"tuning stands still at {before} of {len(search.configs())} runs; sparseopt runs "
                f"{options.runs} shows which are not finished"
            )
    if absent := [" ".join(row.labels) for row, _ in search.searches if not search.chosen_for(row)]:
        raise UserError(f"every candidate of --tune diverged for {', '.join(absent)}; try smaller values")
    return search.tuned_grid()


def train_missing(grid: Grid, options: ReproduceOptions) -> None:
    """Train the runs of the grid that are finished nowhere, under whatever name."""
    train_configs(grid.target, grid.configs(), options)


def train_configs(target: Target, configs: list[Config], options: ReproduceOptions) -> None:
    """Train those of the configurations that are finished nowhere, under whatever name."""
    found = find(*options.places)
    known = [run for config in configs if (run := found.get(experiment(config)))]
    finished = [run for run in known if run.complete]
    ended = [*finished, *(run for run in known if run.archived and run.state == "diverged")]
    if len(ended) == len(configs):
        return
    # Finished runs under their own names stay in the study, so that all who join it at any time see the same one.
    elsewhere = {
        run.config.run_name for run in ended if run.archived or run.path != options.runs / run.config.run_name
    }
    run_configs(
        *([config for config in configs if config.run_name not in elsewhere], options.out),
        name=study_name(target, configs),
        workers=options.workers,
        storage=options.storage,
        place=options,
    )


def study_name(target: Target, configs: list[Config]) -> str:
    """One study a target and scale: whoever gives the same command joins it, and another scale does not disturb it."""
    names = "\n".join(sorted(config.run_name for config in configs))
    return f"{target.name}-{hashlib.sha256(names.encode()).hexdigest()[:6]}"


def _tell_plan(
    console: Console, outcomes: Outcomes, search: Tuning | None, options: ReproduceOptions
) -> None:
    grid = outcomes.grid
    console.print(sentence(grid.target, grid.scale), highlight=False)
    planned = plan(outcomes, options)
    for layout in (runs_table(planned), pace_table(planned)):
        _show(console, layout)
    console.print(summary(planned, options, options.workers), highlight=False)
    if search is not None:
        console.print(tuning_summary(planned, search), highlight=False)


def _tell(console: Console, made: Results) -> None:
    console.print(made.scale, highlight=False)
    for layout in made.tables.values():
        _show(console, layout)
    for line in made.verdict:
        console.print(line, highlight=False)


def _show(console: Console, layout: LabelledTable) -> None:
    if layout.rows:
        console.rule(layout.title, align="left", style="dim")
        print_table(console, for_terminal(layout))
