"""Where a study lives: a SQLite file for one machine, PostgreSQL for many. Nothing but the study is kept there.

What Optuna's storage cannot do in one step (read, decide, write) is done by one process at a time: `exclusive` is a
lock that the system takes back from whoever dies with it, the lock of a file here and an advisory lock in PostgreSQL, one
for each study. What happens often takes none (`trials`). A worker holds no connection while it trains.
"""

import contextlib
import fcntl
import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from sqlalchemy import Engine, create_engine, func, inspect, make_url, select, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError

from sparseopt.lab.errors import UserError
from sparseopt.lab.sweep.patience import PATIENCE, Patience, reason
from sparseopt.lab.system.files import reporting_write_errors

POSTGRES = ("postgres", "postgresql", "postgresql+psycopg")
LOCK = 0x7370617273656F70  # any number that nobody else uses
LOCK_TIMEOUTS = {"lock_timeout": "60s", "idle_in_transaction_session_timeout": "300s"}
"""So that a process that was suspended with the lock, or whose machine lost its power, does not stop all others."""


class Database:
    """A study's database, by its URL. May be sent to another process; connections are made when they are needed."""

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        self.url, self.patience_seconds = _checked(url), patience

    def __reduce__(self) -> tuple[type["Database"], tuple[str, float]]:
        return Database, (self.url.render_as_string(hide_password=False), self.patience_seconds)

    def __str__(self) -> str:
        """The URL without the password, as logs and errors show it."""
        return self.url.render_as_string(hide_password=True)

    @cached_property
    def patience(self) -> Patience:
        return Patience(self.patience_seconds, refusal=self.refusal)

    @cached_property
    def storage(self) -> RDBStorage:
        """Optuna's view of it; its tables are made if there are none."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # what it has to say in an outage, `Patience` says
        url = (
            self.url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
        )  # it is formatted
        with self.exclusive():
            try:
                return RDBStorage(url, engine_kwargs=self._engine_options)
            except RuntimeError as error:  # the tables are those of another version of Optuna
                raise UserError(f"the database {self} cannot be used: {error}") from error

    @property
    def locks_rows(self) -> bool:
        """Does it know SELECT ... FOR UPDATE, by which Optuna's compare-and-set of a trial's state is one step?"""
        return self.url.get_backend_name() != "sqlite"

    def require(self) -> None:
        """Refuse a database that cannot be reached now: at the beginning, it is rather a wrong URL than an outage."""
        self._make_folder()
        try:
            inspect(self._engine).get_table_names()
        except DBAPIError as error:
            raise self.refusal(error) from error
        finally:
            self.close()

    def refusal(self, error: Exception) -> UserError:
        """What to say, and what to do, about a database that cannot be worked with."""
        remedy = (
            "move the file away and give the same command again: runs that are complete count, the others go on from "
            "their checkpoints"
            if self.url.get_backend_name() == "sqlite"
            else "start the server, or set --storage right"
        )
        return UserError(f"the database {self} cannot be used: {reason(error)}; {remedy}")

    def close(self) -> None:
        """Let go of all connections; whoever needs one again gets it."""
        self._engine.dispose()
        if "storage" in self.__dict__:  # made, and not only asked for here
            self.storage.engine.dispose()

    @contextlib.contextmanager
    def exclusive(self, study: str = "") -> Iterator[None]:
        """Be the only process, on whatever machine, that is in such a block for this study; without one, for the tables.

        Connections are kept for the length of the block.
        """
        sqlite = self.url.get_backend_name() == "sqlite"
        locked = self._file_locked() if sqlite else self._advisory_locked(study)
        try:
            with locked:
                yield
        finally:
            self.close()

    @contextlib.contextmanager
    def _advisory_locked(self, study: str) -> Iterator[None]:
        with self._engine.begin() as connection:
            for name, limit in LOCK_TIMEOUTS.items():
                connection.execute(text(f"SET LOCAL {name} = '{limit}'"))
            connection.execute(select(func.pg_advisory_xact_lock(_key(study))))
            yield

    @contextlib.contextmanager
    def _file_locked(self) -> Iterator[None]:
        path = Path(f"{self.url.database}.lock")
        self._make_folder()
        with reporting_write_errors(path):
            lock = path.open("a")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _make_folder(self) -> None:
        """A study in a file may be the first thing in its folder."""
        if self.url.get_backend_name() == "sqlite":
            folder = Path(str(self.url.database)).parent
            with reporting_write_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def _engine(self) -> Engine:
        return create_engine(self.url, **self._engine_options)

    @property
    def _engine_options(self) -> dict[str, object]:
        sqlite = self.url.get_backend_name() == "sqlite"
        limit = {"timeout": 30} if sqlite else {"connect_timeout": 10}
        return {"pool_pre_ping": True, "connect_args": limit}


def _key(study: str) -> int:
    """The number of a study's lock: 64 bits with a sign, as PostgreSQL has them."""
    digest = hashlib.sha256(study.encode()).digest()
    return (LOCK ^ int.from_bytes(digest[:8])) - 2**63 if study else LOCK


def beside(folder: Path) -> str:
    """The URL of the study that lies with its runs."""
    path = (folder / "study.db").resolve()
    if set(str(path)) & set("?%#"):
        raise UserError(
            f"{path} cannot be written as a database URL: choose a folder without ?, % and # in its path"
        )
    return f"sqlite:///{path}"


def _checked(url: str) -> URL:
    """The URL with the driver we use; refused if it is none of a file or of PostgreSQL."""
    try:
        parsed = make_url(url)
    except ArgumentError:  # the text may hold a password, and is not repeated
        raise UserError(
            "--storage is no database URL; write postgresql://USER@HOST/NAME or sqlite:///FILE"
        ) from None
    if parsed.drivername == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed
    if parsed.drivername not in POSTGRES:
        raise UserError(
            f"--storage {parsed.render_as_string(hide_password=True)}: studies live in PostgreSQL "
            "(postgresql://USER@HOST/NAME) or in a SQLite file (sqlite:///FILE)"
        )
    try:
        import psycopg  # noqa: F401 - is it there?
    except ImportError:
        raise UserError(
            "--storage: PostgreSQL needs psycopg, which is not installed; pip install 'sparseopt[postgres]'"
        ) from None
    return parsed.set(drivername="postgresql+psycopg")
