"""A sweep whose workers are killed and whose database goes away ends like one that nobody disturbed."""

import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from sparseopt.lab.commands.sweep import main
from sparseopt.lab.errors import INTERRUPTED
from sparseopt.lab.runs.rundir import RunDir

pytestmark = pytest.mark.slow

GRID = ("seed=0,1,2,3,4,5", "correction=auto,layer")
RUNS = 12


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Any]:
    """Reads what a sweep left, and compares it with what comes out if nothing happens; that is computed once."""
    known: dict[str, Any] = {}

    def compare(sweep: Any, out: Path | None = None) -> None:
        if not known:
            folder = tmp_path_factory.mktemp("undisturbed") / "sweep"
            reference = type(sweep)(folder, f"sqlite:///{folder}.db", "reference", GRID)
            assert main(reference.argv()) == 0
            known.update(reference.outcomes())
            assert len(known) == RUNS
        found = sweep.outcomes(out)
        assert found == {run: known[run] for run in found}

    return compare


def test_two_of_three_commands_die_at_random_moments(
    *, sweep: Callable[..., Any], server: Any, undisturbed: Callable[..., None]
) -> None:
    disturbed, moments = sweep(*GRID, storage=server.url), random.Random(0)
    commands = [disturbed.start() for _ in range(3)]
    for victim in commands[:2]:
        disturbed.wait_until(lambda: disturbed.count(TrialState.RUNNING) > 0)
        time.sleep(moments.uniform(0, 1))
        victim.die()
    assert commands[2].end() == 0, commands[2].output
    disturbed.assert_each_ended_once(RUNS)
    undisturbed(disturbed)
    assert f"{RUNS}/{RUNS} done, 0 running, 0 failed" in commands[2].output


def test_two_of_three_workers_die_and_are_replaced(
    sweep: Callable[..., Any], undisturbed: Callable[..., None]
) -> None:
    disturbed, moments = sweep(*GRID), random.Random(1)
    command = disturbed.start("--workers", "3")
    victims: set[int] = set()
    while len(victims) < 2:
        running = [
            each
            for each in disturbed.trials()
            if each.state == TrialState.RUNNING and each.user_attrs.get("worker")
        ]
        busy = {int(trial.user_attrs["worker"].split()[1]) for trial in running} - victims
        if busy & set(command.workers()):
            time.sleep(moments.uniform(0, 0.3))
            os.kill(min(busy), signal.SIGKILL)
            victims.add(min(busy))
        time.sleep(0.1)
        assert command.process.poll() is None, command.output
    assert command.end() == 0, command.output
    assert command.output.count("died (SIGKILL); another") == 2
    disturbed.assert_each_ended_once(RUNS)
    undisturbed(disturbed)


def test_a_database_that_is_away_for_ten_seconds_costs_ten_seconds(
    *, sweep: Callable[..., Any], server: Any, undisturbed: Callable[..., None]
) -> None:
    disturbed = sweep("seed=0,1", "correction=auto,layer", storage=server.url)
    command = disturbed.start()
    disturbed.wait_until(lambda: disturbed.count(TrialState.COMPLETE) >= 1)
    server.stop()
    try:
        time.sleep(10)
        assert command.process.poll() is None, command.output
    finally:
        server.start()
    assert command.end() == 0, command.output
    assert "does not answer" in command.output
    assert "the database answers again" in command.output
    assert server.password not in command.output
    disturbed.assert_each_ended_once(4)
    undisturbed(disturbed)


def test_machines_that_share_no_folder_notice_a_death_by_its_heartbeat(
    *, sweep: Callable[..., Any], undisturbed: Callable[..., None], tmp_path: Path
) -> None:
    disturbed = sweep("seed=0,1")
    first = disturbed.start(out=tmp_path / "first")
    disturbed.wait_until(lambda: disturbed.count(TrialState.RUNNING) > 0)
    first.die()
    second = disturbed.start(out=tmp_path / "second")
    assert second.end() == 0, second.output
    assert "died; " in second.output
    disturbed.assert_each_ended_once(2)
    undisturbed(disturbed, tmp_path / "second")


def test_ctrl_c_saves_gives_back_and_the_same_command_goes_on(
    sweep: Callable[..., Any], undisturbed: Callable[..., None]
) -> None:
    disturbed = sweep("seed=0,1,2,3,4,5")  # enough to be still at work when it is interrupted
    command = disturbed.start()
    runs = disturbed.folder / "runs"
    disturbed.wait_until(lambda: any(RunDir(run).checkpoints.newest_first() for run in runs.glob("*")))
    os.kill(command.process.pid, signal.SIGINT)
    assert command.end() == INTERRUPTED
    assert "same command" in command.output
    states = [trial.state for trial in disturbed.trials()]
    assert TrialState.WAITING in states
    assert TrialState.RUNNING not in states
    assert main(disturbed.argv()) == 0
    disturbed.assert_each_ended_once(6)
    undisturbed(disturbed)


def test_a_full_disk_is_waited_for(sweep: Callable[..., Any], undisturbed: Callable[..., None]) -> None:
    disturbed = sweep("seed=0,1")
    command = disturbed.start()
    runs = disturbed.folder / "runs"
    disturbed.wait_until(lambda: any(RunDir(run).checkpoints.newest_first() for run in runs.glob("*")))
    (worker,) = command.workers()
    before = resource.prlimit(worker, resource.RLIMIT_FSIZE)
    resource.prlimit(
        worker, resource.RLIMIT_FSIZE, (0, before[1])
    )  # whatever it writes, there is no room for it
    disturbed.wait_until(lambda: "; waiting for" in command.output)
    resource.prlimit(worker, resource.RLIMIT_FSIZE, before)
    assert command.end() == 0, command.output
    disturbed.assert_each_ended_once(2)
    undisturbed(disturbed)


def test_workers_stop_with_the_command_that_started_them(sweep: Callable[..., Any]) -> None:
    disturbed = sweep("seed=0,1")
    command = disturbed.start("--epochs", "300")
    disturbed.wait_until(lambda: disturbed.count(TrialState.RUNNING) > 0)
    (worker,) = command.workers()
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.wait()
    disturbed.wait_until(lambda: not Path(f"/proc/{worker}").exists())
    assert disturbed.count(TrialState.WAITING) == 2
