"""What may be said: a difference is claimed only where its 95% interval leaves zero out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sparseopt.lab.reproduce.grid import Arm
from sparseopt.lab.reproduce.outcomes import Cell, Outcomes, accuracy, mean_train_loss
from sparseopt.lab.show.statistics import Comparison

Claim = Literal["improves", "worsens", "no claim"]


def claim(difference: Comparison, *, better: Literal["higher", "lower"] = "higher") -> Claim:
    """What the seeds support."""
    if not difference.supported:
        return "no claim"
    return "improves" if (difference.mean > 0) == (better == "higher") else "worsens"


@dataclass(frozen=True)
class ClaimCount:
    """One arm against its baseline, over all cells in which both have finished seeds."""

    arm: Arm
    differences: dict[Cell, Comparison]
    better: Literal["higher", "lower"] = "higher"

    @property
    def ahead(self) -> int:
        """Cells in which the mean is on the better side."""
        return sum((each.mean > 0) == (self.better == "higher") for each in self._moved)

    @property
    def _moved(self) -> Sequence[Comparison]:
        return [each for each in self.differences.values() if each.mean != 0]

    def claimed(self, wanted: Claim) -> list[Cell]:
        """The cells of which this is claimed."""
        return [cell for cell, each in self.differences.items() if claim(each, better=self.better) == wanted]


def count_claims(outcomes: Outcomes, arm: Arm) -> ClaimCount:
    """Final test accuracy of an arm against its baseline."""
    return ClaimCount(arm, _differences(outcomes, arm, lambda cell: outcomes.difference(cell, accuracy)))


def count_loss_claims(outcomes: Outcomes, arm: Arm) -> ClaimCount:
    """Mean training loss of an arm against its baseline, relative; lower is better."""
    differences = _differences(
        outcomes, arm, lambda cell: outcomes.relative_difference(cell, mean_train_loss)
    )
    return ClaimCount(arm, differences, better="lower")


def _differences(
    outcomes: Outcomes, arm: Arm, comparing: Callable[[Cell], Comparison | None]
) -> dict[Cell, Comparison]:
    cells = [cell for cell in outcomes.cells.values() if cell.row.arm == arm]
    return {cell: difference for cell in cells if (difference := comparing(cell)) is not None}
