"""Every row against its baseline, paired by seed."""

from collections.abc import Callable

from sparseopt.lab.reproduce.layout import LabelledTable
from sparseopt.lab.reproduce.outcomes import Outcomes, accuracy
from sparseopt.lab.reproduce.tables.texts import LABELS, against
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.runs.provenance import in_words
from sparseopt.lab.show.statistics import LEVEL
from sparseopt.lab.show.words import counted

CONDITIONS: dict[str, Callable[[Run], object]] = {
    "on processors of two kinds, whose sums round in another order": lambda run: in_words(
        run.environment
    ).get("processor"),
    "on two numbers of ranks, each of which has a batch norm of its own": lambda run: run.environment.get(
        "ranks", 1
    ),
    "with activations in bfloat16 on one side alone": lambda run: (
        run.environment.get("accelerate") == "bfloat16"
    ),
}
"""What the two runs of a pair should share besides their seed."""


def difference_table(outcomes: Outcomes) -> LabelledTable:
    """Each row against its baseline: percentage points, interval, and what may be claimed."""
    epochs = outcomes.grid.scale.epochs
    rows = []
    for row in outcomes.rows:
        if (base := row.arm.baseline) is None:
            continue
        differences = [outcomes.difference(outcomes.cells[row, total], accuracy) for total in epochs]
        texts = [against(difference, "+z.2f", "higher") for difference in differences]
        rows.append((*row.labels, base.label, *texts))
    return LabelledTable(
        "Difference to the baseline (percentage points of test accuracy)",
        (*LABELS, "against"),
        tuple(counted(total, "epoch") for total in epochs),
        rows,
        notes=[
            *(
                ["Each row and its baseline with the settings that each was found best with."]
                if outcomes.grid.scale.searches
                else []
            ),
            f"Paired by seed: mean, {LEVEL:.0%} interval (Student's t). improves or worsens only where the interval leaves 0 "
            "out. No claim is made of a single seed, or of seeds that agree to the last digit.",
            *_unlike(outcomes),
        ],
    )


def _unlike(outcomes: Outcomes) -> list[str]:
    """How many pairs differ in more than what is compared."""
    pairs = [
        (run, base.runs[seed])
        for cell in outcomes.cells.values()
        if (base := outcomes.baseline(cell))
        for seed, run in cell.runs.items()
        if seed in base.runs
    ]
    counts = {what: sum(of(own) != of(other) for own, other in pairs) for what, of in CONDITIONS.items()}
    return [
        f"{count} of {counted(len(pairs), 'pair')} ran {what}." for what, count in counts.items() if count
    ]
