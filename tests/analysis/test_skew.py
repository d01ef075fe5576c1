"""The skew diagnostic on networks whose skew is known."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sparseopt as so
from sparseopt.analysis.skew import verdict


def _network(pattern: str, *, sparsity: float = 0.8) -> tuple[nn.Sequential, so.Topology]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(200, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Dropout(0.1), nn.Linear(100, 10)
    )
    masks = so.topology.fan_in_masks(model, sparsity, pattern, exclude="4.weight")
    return model, so.sparsify(model, sparsity, masks=masks, exclude="4.weight")


def _loss(model: nn.Module) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(512, 200, generator=draw)
    return F.cross_entropy(model(images), torch.randint(10, (512,), generator=draw))


class _UpAndDown(nn.Module):
    """A convolution, a grouped transposed one, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up, self.idle = (
            nn.Conv2d(3, 16, 3),
            nn.ConvTranspose2d(16, 6, 3, groups=2),
            nn.Linear(9, 9),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.conv(x).relu())


def test_heterogeneous_layer_shows_the_law_and_the_correction_removes_it() -> None:
    model, topology = _network("bimodal:20")
    layer = so.analysis.skew_report(model, topology, _loss).layers["0.weight"]
    assert layer.law.slope == pytest.approx(-0.5, abs=0.05)
    assert layer.corrected_law.slope == pytest.approx(layer.law.slope + 0.5, abs=1e-9)
    assert layer.fan_in.min() * 15 < layer.fan_in.max()
    assert 10 < layer.rotation < 60


@pytest.mark.parametrize(("correction", "power"), [("measured", 1), ("angular", 2)])
def test_norms_tell_the_scale_also_where_fan_in_does_not(correction: Any, power: int) -> None:
    """Three times the weights of a neuron make its gradient a third; fan-in knows nothing of it."""
    model, topology = _network("random")
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        topology.parameters["0.weight"].mul_(3 ** torch.randn(100, 1, generator=draw))
    layer = so.analysis.skew_report(model, topology, _loss, correction=correction).layers["0.weight"]
    assert layer.norm_law.slope == pytest.approx(-1, abs=0.05)
    assert layer.corrected_norm_law.slope == pytest.approx(layer.norm_law.slope + power, abs=0.05)
    norms = topology.parameters["0.weight"].detach().double().norm(dim=1)
    torch.testing.assert_close(layer.norm, norms)


def test_a_loss_that_has_been_through_backward_is_refused_with_the_remedy() -> None:
    model, topology = _network("random")
    loss = _loss(model)
    loss.backward()
    with pytest.raises(ValueError, match=r"backward\(\) already.*lambda"):
        so.analysis.skew_report(model, topology, loss)


def test_constant_fan_in_has_nothing_to_correct() -> None:
    model, topology = _network("constant")
    report = so.analysis.skew_report(model, topology, _loss)
    layer = report.layers["0.weight"]
    assert layer.factor_spread == 0
    assert layer.rotation == pytest.approx(0, abs=1e-4)
    assert math.isnan(layer.law.slope)
    assert report.jump > 0


def test_rotation_is_the_angle_between_the_gradient_and_what_the_optimizer_would_use() -> None:
    model, topology = _network("bimodal:5")
    with torch.random.fork_rng():  # the report sees the same dropout
        report = so.analysis.skew_report(model, topology, _loss)
    (grad,) = torch.autograd.grad(_loss(model), topology.parameters["0.weight"])
    raw = (grad * topology.masks["0.weight"]).double()
    factor = (topology.fan_in("0.weight").double() / topology.fan_in("0.weight").double().mean()).sqrt()
    corrected = raw * factor.unsqueeze(1)
    cosine = float((raw * corrected).sum() / raw.norm() / corrected.norm())
    assert report.rotation == pytest.approx(math.degrees(math.acos(cosine)), abs=1e-3)


def test_nothing_of_the_model_changes() -> None:
    model, topology = _network("random")
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    masks = {name: mask.clone() for name, mask in topology.masks.items()}
    state = torch.get_rng_state()
    so.analysis.skew_report(model, topology, _loss, method=so.RigL(total_steps=1))
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(mask, masks[name]) for name, mask in topology.masks.items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert topology.itop_rate() == pytest.approx(topology.active() / topology.size())


def test_jump_vanishes_when_the_update_moves_nothing() -> None:
    model, topology = _network("random")
    report = so.analysis.skew_report(model, topology, _loss, drop_fraction=0.0)
    assert report.jump == pytest.approx(0, abs=1e-3)
    assert report.corrected_jump == pytest.approx(0, abs=1e-3)


def test_convolutions_and_layers_the_loss_does_not_reach() -> None:
    torch.manual_seed(0)
    model = _UpAndDown()
    topology = so.sparsify(model, 0.5, distribution="uniform")
    images = torch.randn(4, 3, 8, 8)
    report = so.analysis.skew_report(model, topology, lambda m: m(images).square().mean())
    assert list(report.layers) == ["conv.weight", "up.weight"]
    assert report.layers["up.weight"].scale.shape == (6,)
    assert "conv.weight" in str(report)


def test_evaluation_mode_is_refused_with_the_remedy() -> None:
    model, topology = _network("random")
    with pytest.raises(ValueError, match=r"model\.train\(\)"):
        so.analysis.skew_report(model.eval(), topology, _loss)


@pytest.mark.parametrize(
    ("slopes", "corrected", "expected"),
    [
        ([-0.48, -0.5], [0.02, 0.0], "the correction lessens it"),
        ([0.01, -0.02], [0.51, 0.48], "would add one"),
        ([math.nan, None], [math.nan, None], "changes nothing"),
        ([-0.26], [0.24], "cannot tell"),
        ([-0.1], [0.4], "less of a skew than the correction takes away"),
        ([0.7], [1.2], "a skew the other way round"),
        (
            [-0.61, 0.05],
            [-0.11, 0.05],
            "in the layer that it corrects (theory of the skew: -0.5), corrected -0.11: there is",
        ),
        ([-0.16, 0.2], [-0.16, 0.2], "changes no layer here"),
    ],
)
def test_the_verdict_says_when_there_is_no_skew(
    slopes: list[float | None], corrected: list[float | None], expected: str
) -> None:
    assert expected in verdict(slopes, [0.02] * len(slopes), corrected)


def test_by_default_it_is_the_default_correction_that_is_looked_at() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(400, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 10))
    masks = so.topology.fan_in_masks(model, 0.7, "bimodal:10", distribution="uniform")
    topology = so.sparsify(model, 0.7, masks=masks)
    x, y = torch.randn(512, 400), torch.randint(10, (512,))
    report = so.analysis.skew_report(model, topology, nn.functional.cross_entropy(model(x), y))
    assert report.layers["0.weight"].factor_spread > 0.3
    assert torch.equal(report.layers["3.weight"].factor, torch.ones(10, dtype=torch.float64))
    assert "there is a skew, and the correction lessens it" in report.verdict
    every = so.analysis.skew_report(
        model, topology, nn.functional.cross_entropy(model(x), y), correction="layer"
    )
    assert every.layers["3.weight"].factor_spread > 0.3


@pytest.mark.parametrize(
    "method", [so.GMP(10), so.ACDC(10, sparsity=0.8), so.Static(), so.TopKAST(10, sparsity=0.8)]
)
def test_a_method_without_such_an_update_is_refused(method: so.Method) -> None:
    model, topology = _network("random")
    with pytest.raises(ValueError, match="no update that drops some weights"):
        so.analysis.skew_report(model, topology, _loss, method=method)


def test_a_frozen_layer_is_left_out() -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    topology = so.sparsify(model, 0.5)
    topology.parameters["0.weight"].requires_grad_(False)
    x = torch.randn(8, 32)
    assert list(so.analysis.skew_report(model, topology, lambda m: m(x).square().mean()).layers) == [
        "3.weight"
    ]
    topology.parameters["3.weight"].requires_grad_(False)
    with pytest.raises(ValueError, match="all sparse layers are frozen"):
        so.analysis.skew_report(model, topology, lambda m: m(x).square().mean())


def test_jumps_by_gradient_are_the_same_on_the_kernels() -> None:
    jumps = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 8))
        topology = so.sparsify(model, 0.8)
        network = so.accelerate(model, topology, break_even=0.0) if accelerated else model
        x, y = torch.randn(64, 32), torch.randint(8, (64,))
        report = so.analysis.skew_report(
            network,
            topology,
            lambda m, x=x, y=y: nn.functional.cross_entropy(m(x), y),
            method=so.RigL(total_steps=1),
        )
        jumps.append(report.jump)
        assert not topology.dense_grads.wanted
    assert jumps[0] > 1
    assert jumps[1] == pytest.approx(jumps[0], rel=1e-3)


def test_a_loss_of_the_training_loop_is_enough_and_its_graph_is_kept() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5))
    topology = so.sparsify(model, 0.7)
    x, y = torch.randn(64, 40), torch.randint(5, (64,))
    loss = nn.functional.cross_entropy(model(x), y)
    report = so.analysis.skew_report(model, topology, loss)
    loss.backward()  # the training loop goes on
    again = so.analysis.skew_report(model, topology, lambda m: nn.functional.cross_entropy(m(x), y))
    assert report.rotation == pytest.approx(again.rotation)
    assert math.isnan(report.jump)
    assert not math.isnan(again.jump)
    assert "jump nan" not in str(report)
    with pytest.raises(ValueError, match="no graph"):
        so.analysis.skew_report(model, topology, loss.detach())
