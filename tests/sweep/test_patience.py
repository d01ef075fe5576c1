"""A database that is away is waited for; a wrong question is not asked again."""

import sqlite3
from collections.abc import Callable

import pytest
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import OperationalError, ProgrammingError

from sparseopt.lab.errors import UserError
from sparseopt.lab.sweep import patience as module
from sparseopt.lab.sweep.database import Database
from sparseopt.lab.sweep.patience import Patience


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that passes only while somebody waits."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def away() -> OperationalError:
    return OperationalError("SELECT 1", {}, sqlite3.OperationalError("connection refused\nis it running?"))


def failing(times: int, error: Callable[[], Exception]) -> Callable[[], str]:
    """Fails so many times, then answers."""
    left = [times]

    def act() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise error()
        return "answer"

    return act


def test_it_waits_says_so_once_and_goes_on(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    patience = Patience(600.0)
    assert patience(failing(8, away)) == "answer"
    assert clock[0] > 10
    waiting, again = caplog.messages
    assert "(connection refused)" in waiting  # the first line of what the driver said
    assert "10m00s" in waiting
    assert "answers again" in again
    assert patience.outages == 1


def test_optunas_own_errors_are_understood_by_their_cause() -> None:
    def wrapped() -> Exception:
        error = StorageInternalError("An exception is raised during the commit.")
        error.__cause__ = away()
        return error

    assert Patience()(failing(2, wrapped)) == "answer"


def test_it_does_not_wait_for_ever(clock: list[float]) -> None:
    with pytest.raises(UserError, match=r"1m00s \(connection refused\).*same command"):
        Patience(60.0)(failing(10**6, away))
    assert 60 < clock[0] < 70


def test_one_who_stops_is_in_a_hurry(clock: list[float]) -> None:
    patience = Patience()
    patience.stop.made = True
    with pytest.raises(UserError):
        patience(failing(10**6, away))
    assert clock[0] < 15


def test_a_wrong_question_is_not_repeated(clock: list[float]) -> None:
    wrong = ProgrammingError("SELCT 1", {}, sqlite3.ProgrammingError("syntax error"))
    with pytest.raises(ProgrammingError):
        Patience()(failing(1, lambda: wrong))
    assert clock[0] == 0


def test_a_database_travels_to_a_worker_with_its_password_and_shows_it_nowhere() -> None:
    database = Database("postgresql://me:se%7Bcret@host/db", patience=5.0)
    make, arguments = database.__reduce__()
    again = make(*arguments)
    assert again.url == database.url
    assert again.url.password == "se{cret"
    assert again.patience_seconds == 5.0
    assert "cret" not in str(database)
