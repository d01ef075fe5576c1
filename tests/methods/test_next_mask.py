"""One move of connections: exact, pure, and as the definition says."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import sparseopt as so
from sparseopt.topology import generator

METHODS = [so.SET(total_steps=100), so.RigL(total_steps=100)]


def test_rigl_by_hand() -> None:
    weight = torch.tensor([0.5, -0.1, 0.0, 0.2, 0.0, 0.9])
    mask = torch.tensor([True, True, False, True, False, True])
    grad = torch.tensor([9.0, -8.0, 3.0, 0.1, -4.0, 9.0])
    # of 4 active, floor(0.5 * 4) = 2 smallest go: 1 and 3. Inactive now: 1, 2, 3, 4; largest |g|: 1 (8) and 4 (4).
    new = so.RigL(total_steps=100).next_mask(mask, weight, grad, 0.5)
    assert new.tolist() == [True, True, False, False, True, True]


def test_ties_go_to_the_lowest_index() -> None:
    weight, grad = torch.full((6,), 0.5), torch.full((6,), 2.0)
    mask = torch.tensor([False, True, True, True, True, False])
    # dropped: 1 (the first of equal magnitudes); grown: 0 (the first of the inactive 0, 1, 5)
    assert so.RigL(total_steps=9).next_mask(mask, weight, grad, 0.25).nonzero().flatten().tolist() == [
        0,
        2,
        3,
        4,
    ]


@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    density=st.floats(0, 1),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 1000),
    method=st.sampled_from(METHODS),
)
def test_counts_are_exact_and_what_stays_is_what_is_large(
    rows: int, columns: int, density: float, fraction: float, seed: int, method: so.Method
) -> None:
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=draw) < density
    weight = torch.randn(rows, columns, generator=draw).round(decimals=1) * mask  # rounded: many ties
    grad = torch.randn(rows, columns, generator=draw).round(decimals=1)
    originals = [tensor.clone() for tensor in (mask, weight, grad)]
    new = method.next_mask(mask, weight, grad, fraction, generator(seed, 1, "w"))
    assert new.dtype == torch.bool
    assert int(new.sum()) == int(mask.sum())
    assert all(torch.equal(a, b) for a, b in zip((mask, weight, grad), originals, strict=True)), "pure"
    dropped, moved = mask & ~new, math.floor(fraction * int(mask.sum()))
    assert int(dropped.sum()) <= moved
    if dropped.any():
        stayed = mask.sum() - moved  # those never dropped are at least as large as every dropped one
        largest = weight[mask].abs().sort(descending=True).values[: int(stayed)]
        assert not len(largest) or weight[dropped].abs().max() <= largest.min()


@given(seed=st.integers(0, 100), fraction=st.floats(0.05, 0.9))
def test_rigl_grows_the_largest_gradients_among_all_that_are_inactive_after_the_drop(
    seed: int, fraction: float
) -> None:
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(10, 10, generator=draw) < 0.3
    weight, grad = torch.randn(10, 10, generator=draw) * mask, torch.randn(10, 10, generator=draw)
    new = so.RigL(total_steps=100).next_mask(mask, weight, grad, fraction)
    active, count = int(mask.sum()), math.floor(fraction * int(mask.sum()))
    survivors = (
        mask & (weight.abs() >= weight[mask].abs().sort().values[count:].min())
        if count < active
        else mask & False
    )
    candidates = grad.abs().masked_fill(survivors, -1).flatten()
    expected = survivors.flatten().clone()
    expected[candidates.topk(count).indices] = True
    assert torch.equal(new.flatten(), expected)


def test_set_grows_uniformly() -> None:
    mask = torch.arange(20) < 10
    weight = torch.arange(20, 0, -1).float() * mask
    method, grown = so.SET(total_steps=100), torch.zeros(20)
    for seed in range(2000):
        new = method.next_mask(mask, weight, None, 0.2, generator(0, seed, "w"))
        grown += new & ~(mask & (weight > 12))
    assert not grown[:8].any(), "the 8 largest stay and are not grown"
    assert grown[8:].tolist() == pytest.approx([2000 * 2 / 12] * 12, rel=0.25)


def test_the_same_generator_key_gives_the_same_mask() -> None:
    mask = torch.rand(50, 50, generator=torch.Generator().manual_seed(0)) < 0.2
    weight = torch.randn(50, 50) * mask
    method = so.SET(total_steps=100)
    first, second, other = (
        method.next_mask(mask, weight, None, 0.3, generator(0, t, "w")) for t in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_a_dense_layer_and_an_empty_move_leave_the_mask_alone() -> None:
    ones = torch.ones(5, 5, dtype=torch.bool)
    for method in METHODS:
        assert method.next_mask(ones, torch.randn(5, 5), torch.randn(5, 5), 0.5).all()
        sparse = torch.eye(5).bool()
        assert torch.equal(
            method.next_mask(sparse, torch.randn(5, 5) * sparse, torch.randn(5, 5), 0.1), sparse
        )


def test_rigl_without_a_gradient_says_so() -> None:
    with pytest.raises(ValueError, match=r"RigL .*next_mask .*grad.* None"):
        so.RigL(total_steps=100).next_mask(torch.eye(5).bool(), torch.eye(5), None, 0.5)


@dataclass(frozen=True)
class GrowFirst(so.Method):
    """A method of one's own: one score, and nothing else."""

    def grow_score(self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None) -> Tensor:
        return -torch.arange(weight.numel(), dtype=weight.dtype).view_as(weight)


def test_a_new_method_is_one_score() -> None:
    mask = torch.tensor([False, False, True, True, True])
    new = GrowFirst(total_steps=100).next_mask(mask, torch.tensor([0.0, 0, 1, 2, 3]), torch.zeros(5), 0.67)
    assert new.tolist() == [True, True, False, False, True]


def test_a_method_without_a_grow_score_says_what_is_missing() -> None:
    with pytest.raises(TypeError, match=r"Method .*grow_score"):
        so.Method(total_steps=100).next_mask(torch.eye(5).bool(), torch.eye(5), torch.eye(5), 0.5)


def test_a_score_of_another_shape_is_refused_by_name() -> None:
    class Rowwise(so.RigL):
        def grow_score(
            self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None
        ) -> Tensor:
            assert grad is not None
            return grad.abs().sum(1)

    mask = torch.tensor([[True, False], [False, True]])
    with pytest.raises(ValueError, match=r"Rowwise\.grow_score.*\(2, 2\).*\(2,\)"):
        Rowwise(total_steps=10).next_mask(mask, torch.ones(2, 2), torch.ones(2, 2), 0.5)


def test_scores_may_be_whole_numbers() -> None:
    class InOrder(so.SET):
        def drop_score(
            self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None
        ) -> Tensor:
            return torch.arange(weight.numel()).view(weight.shape)

        def grow_score(
            self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None
        ) -> Tensor:
            return torch.arange(weight.numel()).view(weight.shape)

    mask = torch.tensor([[True, True], [False, False]])
    new = InOrder(total_steps=10).next_mask(mask, torch.ones(2, 2), None, 0.5)
    assert new.tolist() == [[False, True], [False, True]]
