"""When connections move, and how many: every so many steps, a cosine-decayed fraction, until a share of the training."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class UpdateSchedule:
    """Updates at steps t = every, 2 every, ... below `until * total_steps`; t counts optimizer steps from 1.

    The fraction of active weights moved at step t is drop_fraction / 2 * (1 + cos(pi t / (until * total_steps))), and 0 from
    the end on.
    """

    total_steps: int
    drop_fraction: float = 0.3
    every: int = 100
    until: float = 0.75

    def __post_init__(self) -> None:
        if not self.total_steps >= 1:  # "not >=" also refuses NaN
            raise ValueError(f"total_steps must be at least 1, got {self.total_steps}")
        if not self.every >= 1 or self.every % 1:
            raise ValueError(f"every must be at least 1 and whole, got {self.every}")
        if not 0 <= self.drop_fraction <= 1:
            raise ValueError(f"drop_fraction must be in [0, 1], got {self.drop_fraction}")
        if not 0 <= self.until <= 1:
            raise ValueError(f"until is a share of total_steps and must be in [0, 1], got {self.until}")

    @property
    def end(self) -> float:
        """The first step without an update, not necessarily a whole number."""
        return self.until * self.total_steps

    def due(self, step: int) -> bool:
        """Is the topology updated at this step?"""
        return step % self.every == 0 and 0 < step < self.end

    def drop_fraction_at(self, step: int) -> float:
        """Share of the active weights that an update at this step would drop."""
        if step >= self.end:
            return 0.0
        return self.drop_fraction / 2 * (1 + math.cos(math.pi * step / self.end))
