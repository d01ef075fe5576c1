"""What methods refuse, and what they cost."""

from collections.abc import Callable

import pytest

import sparseopt as so


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: so.NM(so.GMP(total_steps=9)), "GMP does not keep the counts that n:m fixes"),
        (lambda: so.NM(so.RigL(total_steps=9), n=4, m=4), "n:m needs 1 <= n < m, got 4:4"),
        (lambda: so.GMP(total_steps=9, sparsity=1.0), r"sparsity must be in \[0, 1\), got 1.0"),
        (
            lambda: so.GMP(total_steps=9, sparsity=0.5, start=0.6),
            r"start must be in \[0, sparsity=0.5\], got 0.6",
        ),
        (
            lambda: so.TopKAST(total_steps=9, sparsity=0.5, backward_sparsity=0.6),
            "backward_sparsity must be in",
        ),
        (lambda: so.GSE(total_steps=9, subset=0), "subset must be positive, got 0"),
        (lambda: so.SRigL(total_steps=9, gamma_sal=2), r"gamma_sal must be in \[0, 1\], got 2"),
        (
            lambda: so.ACDC(total_steps=9, phase=0),
            r"phase is a share of total_steps and must be in \(0, 1\], got 0",
        ),
        (lambda: so.GMP(total_steps=9, scope="all"), "scope must be 'layer' or 'global', got 'all'"),  # pyright: ignore
        (lambda: so.ACDC(total_steps=9, distribution="eer"), "distribution must be .* got 'eer'"),  # pyright: ignore
        (lambda: so.TopKAST(total_steps=9, penalty_norm=3), "penalty_norm must be 1 or 2, got 3"),  # pyright: ignore
        (lambda: so.SET(total_steps=9, drop_decay="cos"), "drop_decay must be .* got 'cos'"),  # pyright: ignore
        (lambda: so.MEST(total_steps=9, lam=-1), "lam must not be negative, got -1"),
        (lambda: so.SNFS(total_steps=9, momentum=1), r"momentum must be in \[0, 1\), got 1"),
        (lambda: so.DSR(total_steps=9, threshold=0), "threshold must be positive, got 0"),
        (lambda: so.DeepR(total_steps=9, temperature=-1), "temperature must not be negative, got -1"),
    ],
)
def test_bad_settings_are_refused(make: Callable[[], so.Method], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_costs_as_the_papers_count() -> None:
    sparse = 0.1
    assert so.Static().cost_at(1, sparse) == pytest.approx(sparse)
    assert so.RigL(total_steps=100, every=10).cost_at(10, sparse) == pytest.approx((2 * sparse + 1) / 3)
    assert so.SNFS(total_steps=100).cost_at(7, sparse) == pytest.approx((2 * sparse + 1) / 3)
    assert so.MEST(total_steps=100, every=10).cost_at(10, sparse) == pytest.approx(sparse)
    assert so.GMP(total_steps=100, every=10, sparsity=0.9).cost_at(1, sparse) == pytest.approx(1.0)
    assert so.GMP(total_steps=100, every=10, sparsity=0.9, until=0.5).cost_at(50, sparse) == pytest.approx(
        sparse
    )
    assert so.GSE(total_steps=100, every=10, subset=3.0).cost_at(10, sparse) == pytest.approx((0.2 + 0.4) / 3)
    nm = so.NM(so.GSE(total_steps=100, every=10, subset=0.5))
    assert [nm.cost_at(step, 0.5) for step in (9, 10)] == [0.5, pytest.approx((1 + 0.75) / 3)]
    granet = so.GraNet(total_steps=100, every=10, sparsity=0.9, until=1.0, prune_until=0.5)
    assert [granet.cost_at(step, sparse) for step in (81, 90)] == [
        pytest.approx(sparse),
        pytest.approx((2 * sparse + 1) / 3),
    ]
    assert so.AnnealedTopK(total_steps=100).cost_at(100, sparse) == pytest.approx((2 * sparse + 1) / 3)
    assert so.TopKAST(total_steps=9, sparsity=0.9, backward_sparsity=0.8).cost_at(1, sparse) == pytest.approx(
        0.4 / 3
    )
