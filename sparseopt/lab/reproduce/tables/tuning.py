"""What each row was tuned by."""

import math

from sparseopt.lab.reproduce.layout import Best, LabelledTable
from sparseopt.lab.reproduce.scale import Candidate
from sparseopt.lab.reproduce.tables.texts import NOTHING, candidate_text
from sparseopt.lab.reproduce.tuning import SEED, RowSearch, Tuning


def tuning_table(tuning: Tuning) -> LabelledTable:
    """Test accuracy of every row with every candidate, the best in bold."""
    candidates = sorted(dict.fromkeys(each for search in tuning.searches.values() for each in search.tried))
    rows = [
        (*_labels(search), *(_tried(search, each) for each in candidates), _best(search))
        for search in tuning.searches.values()
        if search.best is not None
    ]
    notes = [
        f"Seed {SEED}, test accuracy after the last epoch, by which the best of a row is chosen; the seeds then run with it, "
        "this one among them."
    ]
    if not tuning.complete:
        missing = len(tuning.configs()) - tuning.done
        notes.append(
            f"Tuning goes on: {missing} of {len(tuning.configs())} runs are missing, and the best may change."
        )
    return LabelledTable(
        "Tuning (test accuracy in %)",
        ("sparsity", "DST", "epochs", "training"),
        (*map(candidate_text, candidates), "best"),
        rows,
        notes=notes,
    )


def _labels(search: RowSearch) -> tuple[str, str, str, str]:
    sparsity, method, training = search.row.labels
    return sparsity, method, f"{search.epochs}", training


def _tried(search: RowSearch, candidate: Candidate) -> str:
    value = search.tried.get(candidate)
    if value is None:
        return NOTHING
    text = "diverged" if value == -math.inf else f"{value:.2f}"
    return Best(text) if candidate == search.best else text


def _best(search: RowSearch) -> str:
    text = candidate_text(search.best or ())
    if not search.complete:
        return f"{text} so far"
    return f"{text} (the {' and '.join(search.edges)} tried)" if search.edges else text
