"""The sentences of the demo say what the runs showed: checked with made-up runs whose outcome is known."""

from typing import Any

import pytest

from sparseopt.lab.demo.jobs import TrainingResult
from sparseopt.lab.demo.plan import CORRECTIONS, MASKS, METHODS, SPARSITIES, DemoSettings, trainings
from sparseopt.lab.demo.results_act import results_act, stored_bytes
from sparseopt.lab.demo.training_act import training_act


def _outcome(loss: float, accuracy: float = 0.9, **result: Any) -> TrainingResult:
    numbers = {"mean_train_loss": loss, "test_accuracy": accuracy, "itop_rate": 0.2, "seconds": 1.0}
    return TrainingResult(
        [loss] * 12, numbers | {"weights": 1000, "active_weights": 50} | result, first_spread=0.5
    )


def _trainings(effect: float, noise: float) -> dict[tuple[str, ...], list[TrainingResult]]:
    """Ten seeds; SparseOpt changes the loss by `effect`, give or take `noise`, and nothing else does."""
    seeds = range(10)
    outcomes = {(m, c): [_outcome(1 + 0.1 * s) for s in seeds] for m in MASKS for c in CORRECTIONS}
    for masks in MASKS:
        factors = [1 + effect + noise * (-1) ** seed for seed in seeds]
        outcomes[masks, "SparseOpt"] = [_outcome((1 + 0.1 * s) * factors[s]) for s in seeds]
        outcomes[masks, "shuffled"] = [_outcome((1 + 0.1 * s) * (1 + 0.01 * (-1) ** s)) for s in seeds]
    return outcomes


def test_supported_gain_is_told_with_its_interval() -> None:
    act = training_act(_trainings(effect=-0.05, noise=0.01), DemoSettings())
    assert "5.0% lower" in act.sentences[0]
    assert "lower in 10 of 10 seeds" in act.sentences[0]
    assert "no difference" in act.sentences[1]
    assert "none is claimed" in act.sentences[3]


def test_unsupported_gain_is_not_claimed() -> None:
    act = training_act(_trainings(effect=-0.005, noise=0.05), DemoSettings())
    assert "no difference" in act.sentences[0]
    assert "lower in" not in act.sentences[0]


def test_loss_is_told_as_a_loss() -> None:
    act = training_act(_trainings(effect=0.05, noise=0.01), DemoSettings())
    assert "5.0% higher" in act.sentences[0]


def test_results_name_the_best_sparse_row_and_every_row_has_its_size() -> None:
    outcomes = {
        ("dense", "0", ham): [_outcome(0.1, 0.95, active_weights=1000)] * 2 for ham in ("plain", "with HAM")
    }
    for method in METHODS:
        for sparsity in SPARSITIES:
            for ham in ("plain", "with HAM"):
                accuracy = 0.93 if (method, ham) == ("RigL", "with HAM") else 0.9
                outcomes[method, f"{sparsity:g}", ham] = [_outcome(0.2, accuracy)] * 2
    act = results_act(outcomes, DemoSettings(), None)
    assert "RigL with HAM" in act.sentences[0]
    assert "93.0%" in act.sentences[0]
    assert "+0.0 to +3.0 points" in act.sentences[3]
    assert act.table is not None
    assert len(act.table.rows) == 2 + 2 * 2 * len(SPARSITIES)
    assert "no C++ compiler" in results_act(outcomes, DemoSettings(), "no C++ compiler").sentences[1]


def test_stored_bytes_by_hand() -> None:
    assert stored_bytes({"weights": 800, "active_weights": 40}, sparse=True) == 4 * 40 + 100
    assert stored_bytes({"weights": 800, "active_weights": 800}, sparse=False) == 3200


def test_plan_pairs_the_seeds_and_covers_the_acts() -> None:
    jobs = trainings(DemoSettings(seeds=3, table_seeds=2), "on")
    # SET at 95% is in both
    assert [sum(job.act == act for job in jobs) for act in (3, 4)] == [3 * 2 * 3, 2 * 2 * 9 - 2]
    with pytest.raises(AttributeError):
        jobs[0].act = 2  # pyright: ignore[reportAttributeAccessIssue]
