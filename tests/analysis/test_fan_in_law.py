"""The per-neuron law and the dense/sparse twins on inputs where theory is sharp: independent Gaussians."""

import math

import pytest
import torch

from sparseopt.analysis.fan_in_law import (
    angle,
    angular_rate,
    cosine,
    neuron_scale,
    orthogonality_loss,
    power_law,
)
from sparseopt.analysis.gradient_ratio import gradient_ratio
from sparseopt.analysis.twins import INITS, NORMS, Gradients, TwoLayers, gradients, initialise, sparse_twin
from sparseopt.topology.randomness import generator
from sparseopt.topology.start.masks import mask_with_fan_in

SIZES = (400, 64, 10)


def _batches(batches: int = 20, size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    draw = generator(0, "batches")
    images = torch.randn(batches, size, SIZES[0], generator=draw)
    return images, torch.randint(SIZES[2], (batches, size), generator=draw)


def _twins(
    norm: str, fan_in: torch.Tensor, **options: bool
) -> tuple[TwoLayers, torch.Tensor, Gradients, Gradients]:
    model = initialise(TwoLayers(SIZES, norm, **options), "torch", generator(0, "init"))
    mask = mask_with_fan_in(model.layer, fan_in, generator(0, "mask"))
    batches = _batches()
    return model, mask, gradients(model, *batches), gradients(sparse_twin(model, mask), *batches)


def test_ratio_by_hand() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    dense = Gradients(torch.tensor([[[1.0, 9.0], [-2.0, 3.0]]]), torch.tensor([[[1.0, -1.0]]]))
    sparse = Gradients(torch.tensor([[[-4.0, 7.0], [4.0, 4.0]]]), torch.tensor([[[3.0, -2.0]]]))
    ratio = gradient_ratio(dense, sparse, mask)
    assert ratio.weight == pytest.approx(12 / 6)
    assert ratio.preactivation == pytest.approx(5 / 2)
    assert ratio.by_batch.tolist() == pytest.approx([2.0])


@pytest.mark.parametrize("norm", ["batch", "layer", "rms", "group"])
def test_uniform_sparsity_amplifies_gradients_behind_every_norm(norm: str) -> None:
    _, mask, dense, sparse = _twins(norm, torch.full((64,), 80))
    ratio = gradient_ratio(dense, sparse, mask)
    assert ratio.preactivation == pytest.approx(1 / math.sqrt(0.2), rel=0.05)
    assert ratio.weight == pytest.approx(1 / math.sqrt(0.2), rel=0.05)


def test_without_a_norm_sparsity_leaves_gradients_alone() -> None:
    _, mask, dense, sparse = _twins("none", torch.full((64,), 80))
    assert gradient_ratio(dense, sparse, mask).weight == pytest.approx(1, rel=0.05)


def _slope(norm: str) -> float:
    fan_in = torch.tensor([20, 200]).repeat(32)
    _, mask, dense, sparse = _twins(norm, fan_in)
    scales = [neuron_scale(g.weight.abs().mean(dim=0), mask) for g in (dense, sparse)]
    return power_law(fan_in / SIZES[0], scales[1] / scales[0]).slope


def test_batch_norm_skews_by_neuron_and_layer_norm_does_not() -> None:
    assert _slope("batch") == pytest.approx(-0.5, abs=0.04)
    assert _slope("layer") == pytest.approx(0, abs=0.06)


def test_small_fan_in_loses_the_component_along_the_weights() -> None:
    fan_in = torch.tensor([1, 2, 4, 16]).repeat(16)
    model, mask, _, sparse = _twins("batch", fan_in, bias=False)
    along = (sparse.weight * model.first.weight.detach() * mask).sum(dim=2).abs()
    lengths = (sparse.weight * mask).norm(dim=2) * (model.first.weight.detach() * mask).norm(dim=1)
    # BatchNorm's eps is all that keeps them from being orthogonal; it matters where the weights are tiny.
    assert float((along / lengths)[:, fan_in > 1].median()) < 0.002
    single = neuron_scale(sparse.weight.abs().mean(dim=0), mask)
    assert float(single[fan_in == 1].median() / single[fan_in == 16].median()) < 0.25
    assert orthogonality_loss(torch.tensor([1.0, 2.0, 4.0])).tolist() == pytest.approx(
        [0, 0.5**0.5, 0.75**0.5]
    )


def test_power_law_recovers_exponent_and_ignores_unusable_points() -> None:
    x = torch.tensor([1.0, 2.0, 4.0, 8.0, 0.0, 3.0])
    y = torch.tensor([5.0, 2.5, 1.25, 0.625, 7.0, float("nan")])
    fit = power_law(x, y)
    assert fit.slope == pytest.approx(-1)
    assert math.exp(fit.intercept) == pytest.approx(5)
    assert fit.error == pytest.approx(0, abs=1e-6)
    assert math.isnan(power_law(torch.ones(5), torch.rand(5)).slope)


def test_angles_by_hand() -> None:
    right = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    assert cosine(*right) == pytest.approx(math.sqrt(0.5))
    assert angle(*right) == pytest.approx(45)
    weight, grad = torch.tensor([[3.0, 4.0, 7.0]]), torch.tensor([[0.0, 2.0, 9.0]])
    mask = torch.tensor([[True, True, False]])
    assert angular_rate(weight, grad, mask).tolist() == pytest.approx([2 / 5])


def test_every_named_norm_and_initialisation_builds_a_network() -> None:
    for norm in NORMS:
        for init in INITS:
            model = initialise(TwoLayers((12, 8, 3), norm), init, generator(0))
            again = initialise(TwoLayers((12, 8, 3), norm), init, generator(0))
            assert torch.equal(model.first.weight, again.first.weight)
            assert model(torch.randn(4, 12, generator=generator(1))).shape == (4, 3)
