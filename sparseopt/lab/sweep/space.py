"""`--search lr=log:0.01:0.5`: settings that a sampler chooses, and from where.

lr=log:0.01:0.5         a number, on a logarithmic scale
momentum=uniform:0:0.99 a number, or for a whole-number setting any of them
every=log:10:1000       a whole number, because the setting is one
method=set|rigl         one of the values
"""

import math
from collections.abc import Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial

from sparseopt.lab.config.values import KINDS, options_of, settings_given, spelled, value_of
from sparseopt.lab.errors import UserError

OPTION = "--search"
SCALES = ("log", "uniform")

Space = dict[str, BaseDistribution]


def read_space(options: Sequence[str]) -> Space:
    """The distribution of each setting, as the options spell them.

    >>> read_space(["lr=log:0.01:0.5", "every=uniform:10:100"])["every"]
    IntDistribution(high=100, log=False, low=10, step=1)
    """
    given = settings_given(options, OPTION, "range", "lr=log:0.01:0.5")
    return {name: _choice(name, text) if "|" in text else _range(name, text) for name, text in given}


def corners(space: Space) -> dict[str, tuple[Any, ...]]:
    """The outermost values of every setting: what may be searched is in order if these are."""
    return {name: _ends(distribution) for name, distribution in space.items()}


def suggest(trial: Trial, space: Space) -> dict[str, Any]:
    """The values of a trial; those that it has already are kept, the sampler chooses the others."""
    return {name: _suggest(trial, name, distribution) for name, distribution in space.items()}


def _range(name: str, text: str) -> BaseDistribution:
    scale, *ends = text.split(":")
    if scale not in SCALES or len(ends) != 2:
        raise UserError(f"{OPTION} {name}={text}: write log:A:B, uniform:A:B or A|B|C")
    if not {int, float} & set(options_of(KINDS[name])):
        raise UserError(f"{OPTION} {name}={text}: {name} is no number; write its values as A|B|C")
    low, high = (value_of(name, end, OPTION) for end in ends)
    if low is None or high is None or not low < high < math.inf:
        raise UserError(f"{OPTION} {name}={text}: the range must go from a smaller number to a larger one")
    if scale == "log" and low <= 0:
        raise UserError(f"{OPTION} {name}={text}: a logarithmic range must begin above 0, got {spelled(low)}")
    kind = IntDistribution if isinstance(low, int) else FloatDistribution
    return kind(low, high, log=scale == "log")


def _choice(name: str, text: str) -> BaseDistribution:
    values = [value_of(name, word.strip(), OPTION) for word in text.split("|")]
    if any(isinstance(value, tuple) for value in values):
        raise UserError(f"{OPTION} {name}={text}: {name} cannot be searched; use --grid {name}=A,B,...")
    if len(set(values)) < len(values):
        raise UserError(f"{OPTION} {name}={text} has a value twice; give each once")
    return CategoricalDistribution(values)


def _ends(distribution: BaseDistribution) -> tuple[Any, ...]:
    if isinstance(distribution, CategoricalDistribution):
        return tuple(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return distribution.low, distribution.high


def _suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)
