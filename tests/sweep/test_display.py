"""What a person sees of a sweep while it works."""

import io
import logging
import sys

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console

from sparseopt.lab.sweep import progress as sweep_progress
from sparseopt.lab.sweep.display import display
from sparseopt.lab.sweep.progress import SweepProgress


def trial(state: TrialState, epochs: int = 0) -> FrozenTrial:
    values = dict.fromkeys(range(1, epochs + 1), 0.5)
    value = 0.5 if state == TrialState.COMPLETE else None
    return optuna.trial.create_trial(state=state, value=value, intermediate_values=values)


DONE, FAILED, WAITING = trial(TrialState.COMPLETE, 10), trial(TrialState.FAIL, 2), trial(TrialState.WAITING)
RUNNING = trial(TrialState.RUNNING, 4)
BEGINNING = SweepProgress.of([WAITING] * 4, [10] * 4)
HALFWAY = SweepProgress.of([DONE, FAILED, RUNNING, WAITING], [10] * 4)
END = SweepProgress.of([DONE, FAILED, DONE, DONE], [10] * 4)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the progress, in the first element."""
    now = [0.0]
    monkeypatch.setattr(sweep_progress.time, "monotonic", lambda: now[0])
    return now


def test_trials_are_counted_by_state_and_time_by_epochs(clock: list[float]) -> None:
    assert str(HALFWAY) == "1/4 done, 1 running, 1 failed, 1 waiting"
    assert (HALFWAY.epochs, HALFWAY.all_epochs) == (24, 40)
    speed = sweep_progress.SweepSpeed(BEGINNING)
    clock[0] = 240.0
    assert speed.left(BEGINNING) == ""
    assert speed.left(HALFWAY) == "2m40s left"  # 24 epochs took 240 s, 16 are left
    assert speed.left(END) == ""


def test_lines_tell_what_has_ended_and_nothing_twice(clock: list[float]) -> None:
    text = io.StringIO()
    with display(Console(file=text, width=100), BEGINNING) as shown:
        clock[0] = 24.0
        for progress in (BEGINNING, BEGINNING, HALFWAY, HALFWAY, END):
            shown.show(progress)
    lines = text.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["0/4", "1/4", "3/4"]
    assert [line.endswith("16.0s left") for line in lines] == [False, True, False]


def test_in_a_terminal_a_bar_goes_on_and_the_log_stands_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text, error = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", error)
    handler = logging.StreamHandler(error)
    monkeypatch.setattr(logging.root, "handlers", [handler])
    with display(Console(file=text, force_terminal=True, width=100), BEGINNING) as shown:
        shown.show(HALFWAY)
        logging.getLogger("sweep").warning("a worker died")
    assert "1/4 done, 1 running, 1 failed, 1 waiting" in text.getvalue()
    assert "60%" in text.getvalue()
    assert "a worker died" in text.getvalue()
    assert error.getvalue() == ""
    assert handler.stream is error
