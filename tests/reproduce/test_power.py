"""Power against numbers from the definition, by simulation and from tables."""

from collections.abc import Callable

import numpy as np
import pytest

from sparseopt.lab.reproduce.grid import Arm, Grid
from sparseopt.lab.reproduce.outcomes import Outcomes
from sparseopt.lab.reproduce.power import detectable, pooled_spread, power, seeds_needed
from sparseopt.lab.reproduce.tables import by_epoch_table, itop_table, power_table
from sparseopt.lab.reproduce.targets import TARGETS
from sparseopt.lab.show.statistics import compare

AtScale = Callable[..., Grid]
OutcomesOf = Callable[..., Outcomes]


@pytest.mark.parametrize(("difference", "spread", "seeds"), [(1.0, 1.0, 6), (1.7, 0.8, 4), (0.3, 1.0, 20)])
def test_power_is_how_often_an_interval_leaves_zero_out(difference: float, spread: float, seeds: int) -> None:
    draws = np.random.default_rng(0).normal(difference, spread, size=(20_000, seeds))
    half = {4: 3.1824, 6: 2.5706, 20: 2.0930}[seeds] * draws.std(axis=1, ddof=1) / seeds**0.5
    shown = (np.abs(draws.mean(axis=1)) > half).mean()
    assert power(difference, spread, seeds) == pytest.approx(shown, abs=0.012)


def test_the_fewest_seeds_are_the_first_with_enough_power() -> None:
    for difference, spread in [(1.66, 1.0), (0.5, 1.0), (3.0, 0.1)]:
        seeds = seeds_needed(difference, spread)
        assert seeds is not None
        assert power(difference, spread, seeds) >= 0.8
        assert seeds == 2 or power(difference, spread, seeds - 1) < 0.8
    assert seeds_needed(1e-4, 1.0) is None
    assert power(detectable(0.7, 5), 0.7, 5) == pytest.approx(0.8, abs=1e-3)


def test_the_spread_is_pooled_over_rows() -> None:
    # Differences 1, 2, 3 about 2 and 0, 4 about 2: (1 + 0 + 1 + 4 + 4) / (2 + 1).
    rows = [compare([1, 2, 3], [0, 0, 0]), compare([0, 4], [0, 0]), compare([7], [0])]
    assert pooled_spread(rows) == pytest.approx((10 / 3) ** 0.5)
    assert pooled_spread([compare([7], [0])]) is None


def test_the_table_asks_after_the_papers_difference(at_scale: AtScale, outcomes_of: OutcomesOf) -> None:
    grid = at_scale(
        TARGETS["table-cifar100-set"],
        epochs=(10,),
        sparsities=(0.97,),
        ham=False,
        corrections=("none", "measured"),
    )
    # Differences -1, 0, 1: spread 1. The paper: 54.76 - 53.10 = 1.66 at 100 epochs.
    outcomes = outcomes_of(grid, {Arm("measured"): [30.0, 31.0, 32.0], Arm("none"): [31.0, 31.0, 31.0]})
    (row,) = power_table(outcomes).rows
    assert row[:5] == ("97%", "SET", "10", "1.00 (of 3 differences)", "+1.66 at 100 epochs")
    assert row[5] == f"{seeds_needed(1.66, 1.0)}"
    assert not power_table(outcomes_of(grid, {Arm("measured"): [30.0], Arm("none"): [31.0]})).rows


def test_accuracy_on_the_way(at_scale: AtScale, outcomes_of: OutcomesOf) -> None:
    grid = at_scale(TARGETS["table-cifar100-set"], epochs=(10,), sparsities=(0.97,), ham=False)
    table = by_epoch_table(outcomes_of(grid, {Arm("layer"): [30.0, 32.0], Arm("none"): [20.0]}))
    assert table.values == ("1", "2", "3", "5", "10")
    assert table.rows == [
        ("97%", "SET", "10", "SparseOpt", "3.10", "6.20", "9.30", "15.50", "31.00"),
        ("97%", "SET", "10", "baseline", "2.00", "4.00", "6.00", "10.00", "20.00"),
    ]


def test_itop_rates_stand_beside_the_authors(at_scale: AtScale, outcomes_of: OutcomesOf) -> None:
    grid = at_scale(TARGETS["figure-itop-imagenet"], epochs=(270,), sparsities=(0.97,), seeds=1)
    accuracies = {Arm("layer"): [70.0], Arm("layer", grow_from="corrected"): [70.0], Arm("none"): [70.0]}
    outcomes = outcomes_of(grid, accuracies)
    for run in outcomes.finished:
        run.rows[-1]["itop_rate"] = 0.414
    table = itop_table(outcomes)
    assert table.values == ("270 epochs", "authors, 270")
    assert [row[3:] for row in table.rows] == [("41.40", "43"), ("41.40", "27"), ("41.40", "40")]
    assert any("read off their figure" in note for note in table.notes)
    cifar = at_scale(TARGETS["figure-itop-cifar100"], epochs=(100,), sparsities=(0.97,), seeds=1)
    outcomes = outcomes_of(cifar, accuracies)
    for run in outcomes.finished:
        run.rows[-1]["itop_rate"] = 0.3
    assert itop_table(outcomes).values == ("100 epochs",)
