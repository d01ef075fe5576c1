"""The figures of a target: what the paper draws, with the spread over seeds, and the paper's own figures where they fit."""

from collections.abc import Callable
from itertools import product

from sparseopt.lab.config.recipes import MethodName
from sparseopt.lab.reproduce.drawings.budgets import budgets
from sparseopt.lab.reproduce.drawings.curves import curves
from sparseopt.lab.reproduce.drawings.drawn import Drawings
from sparseopt.lab.reproduce.drawings.itop import itop_rates
from sparseopt.lab.reproduce.outcomes import Outcomes
from sparseopt.lab.reproduce.targets import Drawn

__all__ = ["Drawings", "draw"]

DRAWN: dict[Drawn, Callable[[Outcomes, MethodName], Drawings]] = {
    "curves": curves,
    "budgets": budgets,
    "itop": itop_rates,
}


def draw(outcomes: Outcomes) -> Drawings:
    """All figures of the target that there are runs for."""
    made: Drawings = {}
    for kind, method in product(outcomes.grid.target.drawn, outcomes.grid.methods):
        made |= DRAWN[kind](outcomes, method)
    return made
