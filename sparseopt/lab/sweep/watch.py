"""Which workers have died: those whose heartbeat has not changed over a whole lease, as one process has seen it.

No clock is compared with another one's. A watch only trusts what it has seen itself without a gap: after an outage of the
database, or of its own machine, it begins anew, because the others may not have been able to show that they live. Where
worker and watch share a kernel and a folder, the lock of the run shows the same at once.
"""

import time
from collections.abc import Callable, Sequence

from optuna.trial import FrozenTrial, TrialState

from sparseopt.lab.sweep.plan import RUN
from sparseopt.lab.sweep.trials import MACHINE, vital_signs

UNLOCKED_FOR = 5.0
"""Seconds without the lock of its run after which a worker of this machine is dead: it needs some between claim and lock."""


class Watch:
    """Polls running trials, and keeps since when each heartbeat has stood still."""

    def __init__(
        self,
        dead_after: float,
        machine: str,
        in_use: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dead_after, self._machine, self._in_use, self._clock = dead_after, machine, in_use, clock
        self._since: dict[object, float] = {}
        self._last_poll = clock()

    def poll(self, trials: Sequence[FrozenTrial], *, outage: bool = False) -> list[FrozenTrial]:
        """The running trials whose workers are dead; `outage`: the database was away since the last poll."""
        now = self._clock()
        gap = now - self._last_poll > self._dead_after / 2
        seen = {} if outage or gap else self._since
        self._since, self._last_poll, dead = {}, now, []
        for trial in trials:
            if trial.state != TrialState.RUNNING:
                continue
            here = trial.user_attrs.get(MACHINE) == self._machine
            locked = here and self._in_use(trial.user_attrs.get(RUN, ""))
            state = (trial.number, *vital_signs(trial), locked)
            self._since[state] = seen.get(state, now)
            limit = min(UNLOCKED_FOR, self._dead_after) if here else self._dead_after
            if not locked and now - self._since[state] > limit:
                dead.append(trial)
        return dead
