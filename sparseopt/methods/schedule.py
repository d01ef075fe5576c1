"""When connections move, and how many: every so many steps, a fraction that decays or stays, until a share of the training.

The cosine and the end at three quarters are RigL's (Evci et al. 2020, section 3); SET (Mocanu et al. 2018) moves the same
fraction at every update, to the end: `drop_decay="constant", until=1.0`. So do JaxPruner's classes, where no schedule is given;
made from a configuration, they follow the cosine.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin


@dataclass(frozen=True)
class UpdateSchedule:
    """Updates at steps t = every, 2 every, ... below `until * total_steps`; t counts optimizer steps from 1.

    The fraction of active weights moved at step t is drop_fraction / 2 * (1 + cos(pi t / (until * total_steps))), or with
    `drop_decay="constant"` just drop_fraction; from the end on it is 0.
    """

    total_steps: int
    drop_fraction: float = 0.3
    every: int = 100
    until: float = 0.75
    drop_decay: Literal["cosine", "constant"] = "cosine"

    def __post_init__(self) -> None:
        if not self.total_steps >= 1:  # "not >=" also refuses NaN
            raise ValueError(f"total_steps must be at least 1, got {self.total_steps}")
        if not self.every >= 1 or self.every % 1:
            raise ValueError(f"every must be at least 1 and whole, got {self.every}")
        if not 0 <= self.drop_fraction <= 1:
            raise ValueError(f"drop_fraction must be in [0, 1], got {self.drop_fraction}")
        if not 0 <= self.until <= 1:
            raise ValueError(f"until is a share of total_steps and must be in [0, 1], got {self.until}")
        for field in fields(self):  # those of the methods that derive from this, too
            choices, value = get_args(field.type), getattr(self, field.name)
            if get_origin(field.type) is Literal and value not in choices:
                raise ValueError(f"{field.name} must be {' or '.join(map(repr, choices))}, got {value!r}")

    @property
    def end(self) -> float:
        """The first step without an update, not necessarily a whole number."""
        return self.share(self.until)

    def share(self, of_training: float) -> float:
        """So much of total_steps, in steps; a whole number where only rounding keeps it from being one."""
        steps = of_training * self.total_steps
        return float(round(steps)) if abs(steps - round(steps)) < 1e-9 * self.total_steps else steps

    def due(self, step: int) -> bool:
        """Is the topology updated at this step?"""
        return step % self.every == 0 and 0 < step < self.end

    def drop_fraction_at(self, step: int) -> float:
        """Share of the active weights that an update at this step would drop."""
        if step >= self.end:
            return 0.0
        if self.drop_decay == "constant":
            return self.drop_fraction
        return self.drop_fraction / 2 * (1 + math.cos(math.pi * step / self.end))
