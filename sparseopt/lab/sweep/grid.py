"""`--grid sparsity=0.9,0.95 --grid seed=0,1`: every combination of the values, each a configuration."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from sparseopt.lab.config.recipes import Config
from sparseopt.lab.config.values import settings_given, spelled, value_of
from sparseopt.lab.errors import UserError

OPTION = "--grid"

GridValues = dict[str, tuple[Any, ...]]


def read_grid(options: Sequence[str]) -> GridValues:
    """The values of each setting, as the options spell them.

    >>> read_grid(["sparsity=0.9,0.95", "ham=no,yes"])
    {'sparsity': (0.9, 0.95), 'ham': (False, True)}
    """
    given = settings_given(options, OPTION, "values", "sparsity=0.9,0.95")
    return {name: _values(name, text) for name, text in given}


def points(base: Config, grid: GridValues) -> list[Config]:
    """The configuration of every combination, the last setting changing fastest.

    Combinations that train the same (a dense network at two sparsities) are one point.
    """
    configs = [
        point(base, dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())
    ]
    return list({config.run_name: config for config in configs}.values())


def point(base: Config, values: dict[str, Any]) -> Config:
    """The configuration with these values; one that cannot be is told by them."""
    try:
        return dataclasses.replace(base, **values)
    except UserError as error:
        which = ", ".join(f"{name}={spelled(value)}" for name, value in values.items())
        raise UserError(f"{which}: {error}") from error


def _values(name: str, text: str) -> tuple[Any, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UserError(f"{OPTION} {name}={text} has an empty value; write {name}=A,B,...")
    values = tuple(value_of(name, word, OPTION) for word in words)
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"{OPTION} {name} has {spelled(value)} twice; give each value once")
    return values
