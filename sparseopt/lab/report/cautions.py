"""What a reader must know before believing the numbers: runs that failed, are not over, or cannot be compared."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparseopt.lab.config.differences import differing
from sparseopt.lab.errors import UserError
from sparseopt.lab.report.study import Study
from sparseopt.lab.runs.catalogue import Run, State
from sparseopt.lab.runs.provenance import DECISIVE
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.show.words import counted
from sparseopt.lab.system.files import read_json

FEW_SEEDS = 3
"""With fewer, a standard deviation says next to nothing."""


@dataclass(frozen=True)
class Caution:
    """A sentence, and the runs, groups or folders that it is about."""

    sentence: str
    about: list[str]
    grave: bool = False


def cautions(study: Study, left_out: Sequence[str], unread: Sequence[str]) -> list[Caution]:
    """All that is to be said about these runs: `left_out` of them altogether, or with `unread` masks."""
    found = [*_left_out(left_out), *_diverged(study), *_cut_short(study), *_unread(unread)]
    return [*found, *_unfinished(study), *_few_seeds(study), *_repeated(study), *_environments(study)]


def _left_out(sentences: Sequence[str]) -> Iterator[Caution]:
    if sentences:
        verb = "is" if len(sentences) == 1 else "are"
        what = counted(len(sentences), "run")
        yield Caution(
            f"{what} could not be read and {verb} left out of everything below.", [*sentences], True
        )


def _unread(sentences: Sequence[str]) -> Iterator[Caution]:
    if sentences:
        what = counted(len(sentences), "network")
        yield Caution(f"{what} could not be read; the figures of skew leave them out.", [*sentences], True)


def _diverged(study: Study) -> Iterator[Caution]:
    if runs := _in_state(study, "diverged"):
        about = [f"{study.names[run.path]}: {_reason(run)}" for run in runs]
        yield Caution(f"{_runs(runs)} diverged; the results leave them out.", about, True)


def _reason(run: Run) -> str:
    try:
        return str(read_json(RunDir(run.path).diverged_file).get("reason"))
    except UserError:
        return "the reason cannot be read"


def _unfinished(study: Study) -> Iterator[Caution]:
    sentences: dict[State, str] = {
        "stopped": "not finished; the results leave them out, and the same command goes on with them.",
        "running": "still running; the results leave them out.",
    }
    for state, sentence in sentences.items():
        if runs := _in_state(study, state):
            about = [f"{study.names[run.path]}: epoch {len(run.rows)} of {run.config.epochs}" for run in runs]
            yield Caution(f"{_runs(runs)} {'is' if len(runs) == 1 else 'are'} {sentence}", about)


def _cut_short(study: Study) -> Iterator[Caution]:
    runs = [run for run in _in_state(study, "finished") if not run.complete]
    if runs:
        about = [f"{study.names[run.path]}: {len(run.rows)} of {run.config.epochs} epochs" for run in runs]
        yield Caution(
            f"{_runs(runs)} finished, but the metrics of some epochs are missing; the results leave them out.",
            about,
            True,
        )


def _few_seeds(study: Study) -> Iterator[Caution]:
    few = [group for group in study.groups if len(group.finished) < FEW_SEEDS]
    if few:
        about = [f"{group.label}: {counted(len(group.finished), 'finished seed')}" for group in few]
        share = (
            "the only configuration"
            if len(study.groups) == 1
            else f"{len(few)} of {len(study.groups)} configurations"
        )
        yield Caution(
            f"Fewer than {FEW_SEEDS} seeds in {share}: differences from others may be chance.", about
        )


def _repeated(study: Study) -> Iterator[Caution]:
    about = [
        f"{group.label}, seed {seed}: {count} times"
        for group in study.groups
        for seed, count in Counter(run.config.seed for run in group.runs).items()
        if count > 1
    ]
    if about:
        yield Caution(
            "The same settings and seed more than once: means count each as a seed, differences to a baseline take their mean.",
            about,
        )


def _environments(study: Study) -> Iterator[Caution]:
    names = [name for name in differing(study.environments) if name in DECISIVE]
    if names:
        about = [f"{name}: {', '.join(_values(study, name))}" for name in names]
        yield Caution("The runs were not all made with the same versions and on the same device.", about)


def _values(study: Study, name: str) -> list[str]:
    return list(dict.fromkeys(str(each[name]) for each in study.environments if name in each))


def _in_state(study: Study, state: State) -> list[Run]:
    return [run for run in study.runs if run.state == state]


def _runs(runs: Sequence[Run]) -> str:
    return counted(len(runs), "run")
