"""The learning rate as a pure function of the step: linear warm-up, then half a cosine.

With T steps in all, of which the first W warm up, step t (counted from 0) has the rate

    t < W:   start + (peak - start) * t / W
    t >= W:  end + (peak - end) * (1 + cos(pi * (t - W) / (T - W))) / 2

so it is exactly `start` at the first step, `peak` at step W, and would be `end` at step T, the first after the
last. Nothing is carried from step to step: there is no scheduler state to save.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class WarmupCosine:
    """The paper's schedule.

    >>> schedule = WarmupCosine(total_steps=100, warmup_steps=10, start=0.0, peak=0.1, end=0.0)
    >>> [round(schedule(step), 6) for step in (0, 5, 10, 55, 100)]
    [0.0, 0.05, 0.1, 0.05, 0.0]
    """

    total_steps: int
    warmup_steps: int
    start: float
    peak: float
    end: float

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_steps <= self.total_steps:
            raise ValueError(
                f"warmup_steps must be between 0 and total_steps = {self.total_steps}, got {self.warmup_steps}"
            )

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.start + (self.peak - self.start) * step / self.warmup_steps
        if step >= self.total_steps:
            return self.end
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return self.end + (self.peak - self.end) * (1 + math.cos(math.pi * progress)) / 2
