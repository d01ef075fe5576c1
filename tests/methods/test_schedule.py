"""When connections move, and how many, by the definition."""

import math

import pytest

import sparseopt as so


def test_updates_fall_on_multiples_of_every_before_the_end() -> None:
    method = so.SET(total_steps=1000, every=100, until=0.75)
    assert [t for t in range(1100) if method.due(t)] == [100, 200, 300, 400, 500, 600, 700]
    assert not so.SET(total_steps=1000, every=250, until=0.75).due(750), "t < until * total_steps, strictly"


def test_the_end_is_a_whole_step_where_only_rounding_keeps_it_from_being_one() -> None:
    for share, step in ((0.55, 55), (0.5, 50), (0.29, 29), (0.07, 7)):
        method = so.SET(total_steps=100, every=1, until=share, drop_decay="constant")
        assert (method.end, method.due(step - 1), method.due(step)) == (step, True, False)
    assert so.SET(total_steps=10, until=0.75).end == 7.5


def test_the_fraction_is_a_cosine_that_stays_at_zero() -> None:
    method = so.RigL(total_steps=1000, drop_fraction=0.4, until=0.5)
    assert method.drop_fraction_at(0) == 0.4
    assert method.drop_fraction_at(250) == pytest.approx(0.2)
    assert method.drop_fraction_at(100) == pytest.approx(0.2 * (1 + math.cos(math.pi / 5)))
    assert [method.drop_fraction_at(t) for t in (500, 501, 750, 1000, 1500)] == [0.0] * 5


@pytest.mark.parametrize("kind", [so.SET, so.RigL])
def test_a_constant_fraction_stays_to_the_end(kind: type[so.SET]) -> None:
    method = kind(total_steps=1000, drop_fraction=0.3, until=1.0, drop_decay="constant")
    assert [t for t in range(1100) if method.due(t)] == list(range(100, 1000, 100))
    assert [method.drop_fraction_at(t) for t in (100, 500, 900, 999, 1000, 1100)] == [0.3] * 4 + [0.0] * 2


def test_only_an_update_of_rigl_needs_the_dense_gradient() -> None:
    rigl, set_, static = so.RigL(total_steps=100, every=10), so.SET(total_steps=100, every=10), so.Static()
    assert [t for t in range(31) if rigl.needs_dense_grad(t)] == [10, 20, 30]
    assert not any(set_.needs_dense_grad(t) or static.needs_dense_grad(t) for t in range(100))
    assert not any(static.due(t) for t in range(1000))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be at least 1 and whole, got 0"),
        ({"every": -5}, "every must be at least 1 and whole, got -5"),
        ({"every": 2.5}, "every must be at least 1 and whole, got 2.5"),
        ({"every": float("nan")}, "every must be at least 1 and whole, got nan"),
        ({"total_steps": 0}, "total_steps must be at least 1, got 0"),
        ({"total_steps": float("nan")}, "total_steps must be at least 1, got nan"),
        ({"drop_fraction": 1.5}, r"drop_fraction must be in \[0, 1\], got 1.5"),
        ({"drop_fraction": float("nan")}, "got nan"),
        ({"until": 2}, r"until is a share of total_steps and must be in \[0, 1\], got 2"),
        ({"drop_decay": "linear"}, "drop_decay must be 'cosine' or 'constant', got 'linear'"),
        ({"grow_from": "both"}, "grow_from must be 'original' or 'corrected', got 'both'"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        so.RigL(**{"total_steps": 100, **options})  # pyright: ignore[reportArgumentType]
