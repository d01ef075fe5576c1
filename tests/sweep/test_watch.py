"""A worker is dead when its heartbeat stands still before the eyes of somebody who looks without a gap."""

from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from sparseopt.lab.sweep.watch import UNLOCKED_FOR, Watch

DEAD_AFTER = 60.0


@pytest.fixture
def time_passing() -> Callable[..., Any]:
    """Lets a watch look at one running trial every ten seconds; when did it find the worker dead?"""

    def run(
        beats: list[int], *, machine: str = "there", locked: bool = False, outage: int = -1, sleep: int = -1
    ) -> list[int]:
        now = 0.0
        watch = Watch(DEAD_AFTER, "here", lambda run: locked, clock=lambda: now)
        found = []
        for look, beat in enumerate(beats):
            if watch.poll([trial(beat, machine)], outage=look == outage):
                found.append(look)
            now += 100.0 if look == sleep else 10.0
        return found

    return run


def trial(beat: int, machine: str) -> FrozenTrial:
    attributes = {"worker": "a", "beat": beat, "machine": machine, "run": "run"}
    return optuna.trial.create_trial(state=TrialState.RUNNING, user_attrs=attributes)


def test_no_beat_for_longer_than_the_limit_is_death(time_passing: Callable[..., Any]) -> None:
    assert time_passing([1, 2, 3, 3, 3, 3, 3, 3, 3, 3]) == [9]


def test_a_slow_heart_is_alive(time_passing: Callable[..., Any]) -> None:
    assert time_passing([1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3]) == []


def test_while_the_database_was_away_nobody_could_beat(time_passing: Callable[..., Any]) -> None:
    assert time_passing([1] * 12, outage=6) == []


def test_one_who_was_asleep_himself_looks_anew(time_passing: Callable[..., Any]) -> None:
    assert time_passing([1] * 7, sleep=4) == []


def test_here_the_lock_of_the_run_tells_at_once(time_passing: Callable[..., Any]) -> None:
    assert UNLOCKED_FOR < 10
    assert time_passing([1, 1], machine="here") == [1]
    assert time_passing([1] * 20, machine="here", locked=True) == []


def test_a_trial_that_does_not_run_has_no_worker() -> None:
    watch = Watch(DEAD_AFTER, "here", lambda run: False, clock=iter((0.0, 0.0, 10.0, 1000.0)).__next__)
    waiting = optuna.trial.create_trial(state=TrialState.WAITING)
    assert [watch.poll([waiting]) for _ in range(3)] == [[], [], []]
