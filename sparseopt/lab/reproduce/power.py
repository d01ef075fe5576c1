"""How many seeds would have shown it: the power of a paired comparison, given the spread of the differences seen.

n paired seeds show a difference d if the interval of Student's t leaves 0 out. With a spread s of the differences the chance
of that, the power, follows from the noncentral t distribution with parameter d sqrt(n) / s.
"""

import math
from collections.abc import Iterable

import numpy as np
from scipy import optimize, stats

from sparseopt.lab.show.statistics import LEVEL, Comparison

POWER = 0.8
MOST_SEEDS = 10_000
CHANCES = (np.arange(2000) + 0.5) / 2000


def power(difference: float, spread: float, seeds: int) -> float:
    """The chance that the interval of so many paired seeds leaves 0 out.

    >>> round(power(1.0, 1.0, 10), 3)
    0.803
    """
    freedom = seeds - 1
    limit = stats.t.ppf((1 + LEVEL) / 2, freedom)
    shift = abs(difference) * math.sqrt(seeds) / spread
    # Mean over the spread that so many seeds may show by chance; scipy's noncentral t fails where the shift is large.
    seen = stats.chi.ppf(CHANCES, freedom) / math.sqrt(freedom)
    return float((stats.norm.cdf(shift - limit * seen) + stats.norm.cdf(-shift - limit * seen)).mean())


def seeds_needed(difference: float, spread: float) -> int | None:
    """The fewest paired seeds that show the difference with a chance of 80%; None above ten thousand.

    >>> seeds_needed(1.0, 1.0), seeds_needed(2.0, 0.5), seeds_needed(0.0, 1.0)
    (10, 3, None)
    """
    if difference == 0 or power(difference, spread, MOST_SEEDS) < POWER:
        return None
    few, enough = 1, MOST_SEEDS
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if power(difference, spread, middle) >= POWER else (middle, enough)
    return enough


def detectable(spread: float, seeds: int) -> float:
    """The smallest difference that so many paired seeds show with a chance of 80%.

    >>> round(detectable(1.0, 10), 2)
    1.0
    """
    found = optimize.root_scalar(lambda d: power(d, 1.0, seeds) - POWER, bracket=(1e-6, 1e3))
    return spread * float(found.root)


def pooled_spread(differences: Iterable[Comparison]) -> float | None:
    """The spread of a paired difference about the mean of its row, over several rows.

    None where no row has two seeds, or where all of them agree to the last digit.
    """
    squares, freedom = 0.0, 0
    for each in differences:
        squares += sum((difference - each.mean) ** 2 for difference in each.differences)
        freedom += len(each.differences) - 1
    return math.sqrt(squares / freedom) if freedom and squares else None
