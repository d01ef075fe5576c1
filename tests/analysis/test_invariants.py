"""The invariants and F(x) against numerical integration and hand-computed values."""

import math

import pytest
import torch

from sparseopt.analysis.invariants import ham_potential, invariant, norm_radius


def _t(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("alpha", [0.5, 4.0, 80.0])
@pytest.mark.parametrize("x", [-2.0, 1e-4, 0.3, 5.0])
def test_potential_is_the_integral_of_p_over_the_metric(alpha: float, x: float) -> None:
    p = torch.linspace(0, x, 200_001, dtype=torch.float64)
    integral = torch.trapezoid(p / (1 + alpha * p.abs()), p)
    assert float(ham_potential(_t(x), alpha)) == pytest.approx(float(integral), rel=1e-6)


def test_potential_is_smooth_where_the_series_takes_over() -> None:
    x = torch.linspace(0.9e-3, 1.1e-3, 101, dtype=torch.float64)
    slope = torch.gradient(ham_potential(x, 1.0), spacing=(x,))[0][1:-1]
    torch.testing.assert_close(slope, (x / (1 + x))[1:-1], rtol=1e-5, atol=0)


def test_vanishing_alpha_gives_back_gradient_flow() -> None:
    a, gamma, beta = _t(1.5), _t(-0.7), _t(0.2)
    expected = 1.5**2 - 0.7**2 - 0.2**2
    assert float(invariant(a, gamma, beta, 0.0)) == pytest.approx(expected)
    assert float(invariant(a, gamma, beta, 1e-6)) == pytest.approx(expected, rel=1e-4)


def test_balanced_start_can_flip_under_ham_but_not_under_gradient_flow() -> None:
    a, gamma, beta = _t(-1.0), _t(1.0), _t(0.0)
    assert float(invariant(a, gamma, beta, 0.0)) == 0
    assert float(invariant(a, gamma, beta, 4.0)) == pytest.approx((4 - math.log(5)) / 8 - 1)


def test_norm_radius_lies_on_the_invariant_set() -> None:
    a = torch.tensor([-1.0, 0.0, 0.5, 2.0], dtype=torch.float64)
    radius = norm_radius(a, 4.0, level=-0.3)
    torch.testing.assert_close(invariant(a, radius, torch.zeros_like(a), 4.0), torch.full_like(a, -0.3))
    assert bool(norm_radius(_t(0.1), 4.0, level=0.5).isnan())
