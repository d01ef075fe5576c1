"""What seeds say: their mean and spread, and paired comparisons.

Runs of one seed share initial weights, masks and batches; in the difference of two of them, what they share cancels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit  # scipy.stats would take a second to import

LEVEL = 0.95


@dataclass(frozen=True)
class Comparison:
    """Differences seed by seed, their mean, and the confidence interval of the mean (Student's t)."""

    differences: tuple[float, ...]
    mean: float
    low: float
    high: float

    @property
    def supported(self) -> bool:
        """Do the seeds support a difference: does the interval leave zero out?

        An interval without a width does not count. Differences that agree to the last digit do so because accuracies
        come in whole images, and tell nothing of the spread.
        """
        has_width = self.high - self.low > 1e-9 * abs(self.mean)
        return has_width and (self.low > 0 or self.high < 0)

    def told(self, form: str) -> str:
        """The mean and its interval. A difference that rounds to nothing has no sign of its own.

        >>> compare([1.0, 2.0, 3.0], [2.0, 4.0, 4.0]).told("+z.2f"), compare([0.5], [0.25]).told("+z.1%")
        ('-1.33 (-2.77 to +0.10)', '+25.0% (1 seed)')
        """
        interval = "1 seed" if math.isinf(self.low) else f"{self.low:{form}} to {self.high:{form}}"
        return f"{self.mean:{form}} ({interval})"

    @property
    def negative(self) -> int:
        """In how many seeds the difference is below zero."""
        return sum(difference < 0 for difference in self.differences)


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean over seeds and the standard deviation of a seed (n - 1 in the denominator); of one seed, None.

    >>> mean_and_std([1.0, 2.0, 3.0]), mean_and_std([4.0])
    ((2.0, 1.0), (4.0, None))
    """
    return _mean(values), _std(values) if len(values) > 1 else None


def over_seeds(values: Sequence[float], form: str) -> str:
    """The mean over seeds, with the standard deviation of a seed where there are several.

    >>> over_seeds([1.0, 2.0, 3.0], "+.2f"), over_seeds([0.4], ".1%")
    ('+2.00 ± 1.00', '40.0%')
    """
    mean, std = mean_and_std(values)
    return f"{mean:{form}}" if std is None else f"{mean:{form}} ± {std:{form.lstrip('+')}}"


def _mean(values: Sequence[float]) -> float:
    """Also of numbers that are infinite, not numbers, or close to the largest there are."""
    return fmean(values) if _usual(values) else sum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    return stdev(values) if _usual(values) else math.nan


def _usual(values: Sequence[float]) -> bool:
    return all(abs(value) < 1e150 for value in values)  # false for what is not a number


def compare(values: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """values - baseline, seed by seed.

    >>> c = compare([1.0, 2.0, 3.0], [2.0, 4.0, 4.0])
    >>> round(c.mean, 4), round(c.low, 4), round(c.high, 4), c.negative
    (-1.3333, -2.7676, 0.1009, 3)
    """
    return _of([value - base for value, base in zip(values, baseline, strict=True)])


def compare_relative(values: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """(values - baseline) / baseline, seed by seed."""
    return _of([value / base - 1 for value, base in zip(values, baseline, strict=True)])


def _of(differences: list[float]) -> Comparison:
    """The mean d with d ± t s / sqrt(n), t the quantile of Student's distribution with n - 1 degrees of freedom.

    One seed has no spread to judge by: its interval is the whole line, and supports nothing.
    """
    n, mean = len(differences), _mean(differences)
    if n < 2:
        return Comparison(tuple(differences), mean, -math.inf, math.inf)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * _std(differences) / math.sqrt(n)
    return Comparison(tuple(differences), mean, mean - half, mean + half)
