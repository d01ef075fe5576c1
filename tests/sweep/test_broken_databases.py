"""A connection that is cut at any statement is waited for; a database that is damaged under a sweep is told in one line."""

import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from sqlalchemy import Engine, create_engine, event, text

from sparseopt.lab.config.recipes import RECIPES
from sparseopt.lab.errors import UserError
from sparseopt.lab.sweep.database import Database
from sparseopt.lab.sweep.definition import Definition
from sparseopt.lab.sweep.patience import Patience
from sparseopt.lab.sweep.plan import Runs
from sparseopt.lab.sweep.trials import Trials

CONFIGS = [replace(RECIPES["digits-mlp"], seed=seed) for seed in range(2)]
PLAN = Runs.of(CONFIGS, Definition("runs"))

Cut = Callable[[int], None]


@pytest.fixture
def cut(server: Any) -> Iterator[Cut]:
    """Lets the server end the connection that is about to execute the statement of that number, counted from now."""
    administrator = create_engine(
        server.url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    left = [-1]

    def before(connection: Any, *_: Any) -> None:
        if connection.engine is administrator:
            return
        left[0] -= 1
        if left[0] == -1:
            process = connection.connection.driver_connection.info.backend_pid
            with administrator.connect() as own:
                own.execute(text(f"SELECT pg_terminate_backend({process})"))

    event.listen(Engine, "before_cursor_execute", before)
    yield lambda number: left.__setitem__(0, number)
    event.remove(Engine, "before_cursor_execute", before)
    administrator.dispose()


def everywhere(cut: Cut, act: Callable[[], Any], step: int = 1) -> int:
    """Acts again and again, each time cut `step` statements later, until it gets through; at which statement that was."""
    for number in itertools.count(step=step):
        patience = Patience(60.0, pause=0.001)
        cut(number)
        patience(act)
        cut(-1)
        if not patience.outages:
            return number
    raise AssertionError


@pytest.mark.slow
def test_a_connection_cut_at_any_statement_is_an_outage(server: Any, cut: Cut) -> None:
    name, beats = f"study {secrets.token_hex(4)}", itertools.count(1)
    database = Database(server.url)
    trials = Trials.open(database, name, PLAN)
    assert everywhere(cut, trials.all) > 5  # Optuna reads the trials in several statements
    claims = []
    assert everywhere(cut, lambda: claims.append(trials.claim("worker", "machine")), step=3) > 5
    claim = claims[0]
    assert set(claims) == {claim}
    assert everywhere(cut, lambda: trials.beat(claim, next(beats), {next(beats): 0.5}), step=5) > 5
    assert everywhere(cut, lambda: trials.complete(claim, {1: 0.5, 2: 0.75}, seconds=3.0), step=5) > 5
    assert [trial.state for trial in trials.all()] == [TrialState.COMPLETE, TrialState.WAITING]
    database.close()


def garbage(file: Path) -> None:
    file.write_bytes(b"\0" * 100_000)


def half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("damage", [garbage, half, Path.unlink], ids=["garbage", "half", "gone"])
def test_a_file_that_is_damaged_under_a_study_is_refused_at_once(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    file = tmp_path / "study.db"
    database = Database(f"sqlite:///{file}", patience=0.0)
    trials = Trials.open(database, "study", PLAN)
    database.close()
    damage(file)
    with pytest.raises(UserError, match=r"study\.db .*move"):
        database.patience(trials.all)
    with pytest.raises(UserError, match=r"study\.db"):
        database.patience(lambda: trials.claim("worker", "machine"))
