"""`sparseopt demo`: the story in four acts, with a page to keep."""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from sparseopt.lab.cli.command import run
from sparseopt.lab.demo.act import Act
from sparseopt.lab.demo.jobs import AnalysisJob, KernelsJob, TrainingJob, TrainingResult
from sparseopt.lab.demo.page import WHEN, write_page
from sparseopt.lab.demo.plan import SERIES, DemoSettings, Group, analyses, trainings
from sparseopt.lab.demo.results_act import results_act
from sparseopt.lab.demo.skew_act import skew_act
from sparseopt.lab.demo.speed_act import speed_act
from sparseopt.lab.demo.training_act import training_act
from sparseopt.lab.demo.workers import pool_of, run_all
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.show.figures import save
from sparseopt.lab.show.terminal import print_table, wide_console
from sparseopt.lab.speed.measure import RESNET, measure

TITLES = {1: "Act 1: speed", 2: "Act 2: the skew", 3: "Act 3: training", 4: "Act 4: what you get"}
DemoJob = KernelsJob | AnalysisJob | TrainingJob
SPARSITY = 0.95  # of the network that act 1 times
COLUMNS = (
    SpinnerColumn(),
    TextColumn("{task.description}", justify="left"),
    BarColumn(bar_width=24),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TextColumn("{task.fields[last]}", style="dim"),
)


def main(argv: list[str]) -> int:
    """Play what the command line says."""
    return run("sparseopt demo", demo, argv)


def demo(settings: DemoSettings) -> None:
    """The story in four acts, on data that needs no download: speed on this machine, the skew, training, and what you get."""
    console = wide_console()
    started = time.monotonic()
    console.print(WHEN, highlight=False)
    with pool_of(settings.workers) as pool:
        # Compiling takes one core for a while: the other one can analyse meanwhile. Nobody works while speed is measured.
        _, ratio, law = _compute([KernelsJob(), *analyses(settings)], pool, console)
        speed = measure(RESNET, SPARSITY, settings.seconds)
        acts = [speed_act(speed), skew_act(ratio, law)]
        for act in acts:
            _tell(console, act, settings.out)
        jobs = trainings(settings, "on" if speed.why_not is None else "off")
        results = _compute(jobs, pool, console)
    trained = _by_act(jobs, results, settings)
    for act in (training_act(trained[3], settings), results_act(trained[4], settings, speed.why_not)):
        acts.append(act)
        _tell(console, act, settings.out)
    page = settings.out / "index.html"
    runs = [Run.read(job.folder) for job in jobs]
    write_page(acts, runs, page, seconds=time.monotonic() - started, workers=settings.workers)
    print(page.resolve())


def _compute(jobs: Sequence[DemoJob], pool: ProcessPoolExecutor, console: Console) -> list[Any]:
    """All results in the order of the jobs, while showing how far each act is."""
    results: list[Any] = [None] * len(jobs)
    acts = {job.act: TITLES[job.act] for job in jobs}
    done = dict.fromkeys(acts, 0)
    with Progress(*COLUMNS, console=console, disable=not console.is_terminal) as progress:
        totals = {act: sum(job.act == act for job in jobs) for act in acts}
        tasks = {act: progress.add_task(TITLES[act], total=totals[act], last="") for act in acts}
        for index, result in run_all(jobs, pool):
            results[index], job = result, jobs[index]
            done[job.act] += 1
            news = f"{job}{_news(result)}"
            progress.update(tasks[job.act], advance=1, last=news)
            if not console.is_terminal:
                console.print(f"{TITLES[job.act]} {done[job.act]}/{totals[job.act]}  {news}", highlight=False)
    return results


def _news(result: Any) -> str:
    return f": {result.result['test_accuracy']:.1%}" if isinstance(result, TrainingResult) else ""


def _by_act(
    jobs: Sequence[TrainingJob], results: Sequence[TrainingResult], settings: DemoSettings
) -> dict[int, dict[Group, list[TrainingResult]]]:
    """What each act shows, group by group, seeds in their order."""
    outcomes = {job.config: result for job, result in zip(jobs, results, strict=True)}
    trained: dict[int, dict[Group, list[TrainingResult]]] = {act: {} for act in SERIES}
    for act, series in SERIES.items():
        for group, config in series(settings):
            trained[act].setdefault(group, []).append(outcomes[config])
    return trained


def _tell(console: Console, act: Act, out: Path) -> None:
    console.rule(f"{TITLES[act.number]}", align="left", style="dim")
    for sentence in act.sentences:
        console.print(sentence, highlight=False, markup=False)
    if act.table:
        print_table(console, act.table)
    for path in save(act.figure, out / f"{act.number}-{act.name}"):
        console.print(str(path), style="dim", highlight=False, markup=False, soft_wrap=True)
