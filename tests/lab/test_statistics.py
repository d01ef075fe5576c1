"""Means, spreads and paired comparisons, against numbers from the tables of Student's t."""

import math

import pytest

from sparseopt.lab.show.statistics import compare, compare_relative


def test_interval_of_ten_seeds() -> None:
    differences = [0.1, -0.2, 0.3, 0.0, 0.2, -0.1, 0.4, 0.1, 0.2, 0.0]
    comparison = compare([1 + d for d in differences], [1.0] * 10)
    s = math.sqrt(sum((d - 0.1) ** 2 for d in differences) / 9)
    assert comparison.mean == pytest.approx(0.1)
    assert comparison.high - comparison.mean == pytest.approx(2.262157 * s / math.sqrt(10), rel=1e-6)
    assert comparison.low == pytest.approx(2 * comparison.mean - comparison.high)
    assert comparison.negative == 2
    assert not comparison.supported


def test_relative_differences_are_paired_by_seed() -> None:
    comparison = compare_relative([0.9, 1.8, 2.73], [1.0, 2.0, 3.0])
    assert comparison.differences == pytest.approx([-0.1, -0.1, -0.09])
    assert comparison.supported
    assert comparison.negative == 3


def test_one_seed_supports_nothing() -> None:
    comparison = compare([1.0], [2.0])
    assert not comparison.supported
    assert comparison.low == -math.inf


def test_seeds_that_agree_to_the_last_digit_support_nothing() -> None:
    comparison = compare([91.4, 92.0], [90.9, 91.5])
    assert comparison.mean == pytest.approx(0.5)
    assert not comparison.supported


def test_seeds_must_match() -> None:
    with pytest.raises(ValueError, match="shorter"):
        compare([1.0, 2.0], [1.0])
