"""A database may be away for a while: whoever needs it waits, says so once, and goes on.

Everything that is done through here may be done twice: an answer can be lost after the database has acted.
"""

import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError, SQLAlchemyError

from sparseopt.lab.errors import UserError
from sparseopt.lab.show.words import duration
from sparseopt.lab.system.interrupt import StopRequest

log = logging.getLogger(__name__)

PATIENCE = 600.0
LONGEST_PAUSE = 5.0
WHILE_STOPPING = 5.0

T = TypeVar("T")


class Patience:
    """Calls again and again while the database is away, for at most `seconds`.

    One that answers, but cannot be worked with (its file is damaged, its tables are gone), is a matter for `refusal`.
    """

    def __init__(
        self,
        seconds: float = PATIENCE,
        pause: float = 0.2,
        refusal: Callable[[Exception], Exception] | None = None,
    ) -> None:
        self.seconds, self.first_pause, self._refusal = seconds, pause, refusal
        self.outages = 0
        """How many times it was away."""
        self.stop = StopRequest()
        """A stop takes effect between two calls to the database, never within one."""

    @property
    def limit(self) -> float:
        """Once a stop is requested, it is shorter."""
        return min(self.seconds, WHILE_STOPPING) if self.stop.made else self.seconds

    def __call__(self, action: Callable[[], T]) -> T:
        """What the action returns, once the database has answered."""
        since, pause = time.monotonic(), self.first_pause
        while True:
            try:
                result = action()
            except Exception as error:
                if not is_outage(error):
                    if self._refusal is not None and is_of_database(error):
                        raise self._refusal(error) from error
                    raise
                self._bear(error, since, told=pause > self.first_pause)
            else:
                if pause > self.first_pause:
                    log.warning("the database answers again after %s", duration(time.monotonic() - since))
                return result
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _bear(self, error: Exception, since: float, *, told: bool) -> None:
        if not told:
            self.outages += 1
            limit = duration(self.limit)
            log.warning("the database does not answer (%s); waiting for it, at most %s", reason(error), limit)
        if time.monotonic() - since > self.limit:
            raise UserError(
                f"the database has not answered for {duration(self.limit)} ({reason(error)}); all runs are saved: "
                "start the database, and the same command goes on"
            ) from error


def is_outage(error: BaseException) -> bool:
    """Does an error say that the database cannot be reached or is busy, and not that the question was wrong?

    Optuna asks on over a connection that was cut, and what it then raises, wrapped once more, is that the transaction must
    be rolled back; what cut it is further down the chain.
    """
    chain = list(_chain(error))
    if any(_lacks(each) for each in chain):
        return False
    return is_of_database(error) and any(
        isinstance(each, OperationalError | InterfaceError | PendingRollbackError)
        or (isinstance(each, DBAPIError) and each.connection_invalidated)
        for each in chain
    )


def is_of_database(error: BaseException) -> bool:
    """Is it an error that working with the database raised, rather than one of the program?"""
    gone = isinstance(error, KeyError) and "Record does not exist" in str(error)  # the study, the trial
    return gone or isinstance(error, SQLAlchemyError | StorageInternalError)


def reason(error: BaseException) -> str:
    """What the database's driver said, in one line."""
    chain = list(_chain(error))
    cause = next((each for each in chain if isinstance(each, DBAPIError)), chain[0])
    said = str(cause.orig) if isinstance(cause, DBAPIError) else str(cause)
    return next((line.strip() for line in said.splitlines() if line.strip()), type(cause).__name__)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from, and what was being handled when that was raised."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _lacks(error: BaseException) -> bool:
    """SQLite's way to say that a file, made anew under a study, has no tables: no waiting brings them back."""
    return isinstance(error, OperationalError) and str(error.orig).startswith("no such")
