"""Every row against its baseline, paired by seed."""

from sparseopt.lab.reproduce.layout import LabelledTable
from sparseopt.lab.reproduce.outcomes import Outcomes, accuracy
from sparseopt.lab.reproduce.tables.texts import LABELS, against
from sparseopt.lab.show.statistics import LEVEL
from sparseopt.lab.show.words import counted


def difference_table(outcomes: Outcomes) -> LabelledTable:
    """Each row against its baseline: percentage points, interval, and what may be claimed."""
    epochs = outcomes.grid.scale.epochs
    rows = []
    for row in outcomes.rows:
        if (base := row.arm.baseline) is None:
            continue
        differences = [outcomes.difference(outcomes.cells[row, total], accuracy) for total in epochs]
        texts = [against(difference, "{:+.2f}", "higher") for difference in differences]
        rows.append((*row.labels, base.label, *texts))
    return LabelledTable(
        "Difference to the baseline (percentage points of test accuracy)",
        (*LABELS, "against"),
        tuple(counted(total, "epoch") for total in epochs),
        rows,
        notes=[
            *(
                ["Each row and its baseline with the settings that each was found best with."]
                if outcomes.grid.scale.tune
                else []
            ),
            f"Paired by seed: mean, {LEVEL:.0%} interval (Student's t). improves or worsens only where the interval leaves 0 "
            "out. No claim is made of a single seed, or of seeds that agree to the last digit.",
        ],
    )
