"""How numbers are written in the cells of tables."""

from typing import Literal

from sparseopt.lab.reproduce.claims import claim
from sparseopt.lab.reproduce.scale import Candidate
from sparseopt.lab.show.statistics import Comparison

LABELS = ("sparsity", "DST", "training")
"""The headings of what names a row."""

NOTHING = "-"


def candidate_text(candidate: Candidate) -> str:
    """Settings that a row was tuned to, in a few words.

    >>> candidate_text((("lr", 0.2), ("drop_fraction", 0.5)))
    'lr 0.2, drop fraction 0.5'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in candidate)


def plus_minus(mean: float, std: float | None) -> str:
    """A mean with its spread, where it has one.

    >>> plus_minus(33.104, 0.283), plus_minus(33.1, None)
    ('33.10 ± 0.28', '33.10')
    """
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def against(difference: Comparison | None, form: str, better: Literal["higher", "lower"]) -> str:
    """A difference with its interval, and what the seeds support."""
    if difference is None:
        return NOTHING
    return f"{difference.told(form)} {claim(difference, better=better)}"
