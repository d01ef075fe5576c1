"""Corrections by the norms of the weights: (||w_i|| / r)^p, r the root mean square over the layer's neurons, at every step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]
Build = Callable[..., Network]
POWERS = {"measured": 1, "angular": 2}
MODES = list(POWERS)


def factors_of(weight: Tensor, power: int) -> Tensor:
    """One factor a row, by the definition."""
    norms = torch.stack([row.double().square().sum().sqrt() for row in weight])
    return (norms / norms.square().mean().sqrt()) ** power


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sparsity", [0.4, 0.8])  # passes over dense tensors, and over active weights
def test_every_step_goes_by_the_norms_it_finds(
    build: Build, loss_of: Any, mode: Any, sparsity: float
) -> None:
    model, topology = build(sparsity, norm=False)
    model.double()
    optimizer = so.SparseOpt(SGD(model.parameters(), lr=0.5), topology, so.Static(), correction=mode)
    expected = {name: weight.detach().clone() for name, weight in topology.parameters.items()}
    for step in range(1, 5):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        for name, weight in topology.parameters.items():
            assert weight.grad is not None
            factors = factors_of(expected[name], POWERS[mode])
            torch.testing.assert_close(optimizer.factors[name], factors, rtol=1e-12, atol=0)
            expected[name] -= 0.5 * factors.unsqueeze(1) * weight.grad * topology.masks[name]
        optimizer.step()
        for name, weight in topology.parameters.items():
            torch.testing.assert_close(weight.detach(), expected[name], rtol=1e-10, atol=1e-13)


def turned(mode: Any, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients that move a layer before BatchNorm, and by what its directions turn, where its neurons are scaled by this.

    Both times the root mean square of the norms, and its square, which the neurons share.
    """
    torch.manual_seed(3)
    # What BatchNorm adds to the variance breaks the invariance a little, so next to nothing is added.
    model = nn.Sequential(
        nn.Linear(30, 6, bias=False), nn.BatchNorm1d(6, eps=1e-30), nn.ReLU(), nn.Linear(6, 4)
    )
    model.double()
    topology = so.sparsify(model, 0.6, exclude="3.weight")
    weight = topology.parameters["0.weight"]
    with torch.no_grad():
        weight *= scale.unsqueeze(1)
    norms = weight.detach().norm(dim=1)
    lr = 1e-7
    optimizer = so.SparseOpt(SGD(model.parameters(), lr=lr), topology, so.Static(), correction=mode)
    inputs, labels = torch.randn(64, 30, dtype=torch.float64), torch.randint(4, (64,))
    nn.functional.cross_entropy(model(inputs), labels).backward()
    before = weight.detach().clone()
    optimizer.step()
    after = weight.detach()
    directions = after / after.norm(dim=1, keepdim=True) - before / norms.unsqueeze(1)
    r = norms.square().mean().sqrt()
    return (before - after) / lr * r, directions / lr * r**2


def test_measured_makes_gradients_independent_of_the_norms() -> None:
    plain = turned("measured", torch.ones(6, dtype=torch.float64))
    scaled = turned("measured", torch.tensor([0.2, 1.0, 3.0, 0.5, 7.0, 1.5], dtype=torch.float64))
    torch.testing.assert_close(plain[0], scaled[0], rtol=1e-6, atol=1e-9)


def test_angular_turns_directions_independently_of_the_norms() -> None:
    plain = turned("angular", torch.ones(6, dtype=torch.float64))
    scaled = turned("angular", torch.tensor([0.2, 1.0, 3.0, 0.5, 7.0, 1.5], dtype=torch.float64))
    torch.testing.assert_close(plain[1], scaled[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sparsity", [0.4, 0.8])
def test_a_neuron_of_newly_grown_weights_can_leave_zero(
    build: Build, train: Any, mode: Any, sparsity: float
) -> None:
    model, topology = build(sparsity)
    weight = topology.parameters["0.weight"]
    with torch.no_grad():
        neuron = int(topology.fan_in("0.weight").argmax())
        weight[neuron] = 0
        model.get_parameter("1.bias").fill_(1.0)  # above the ReLU's corner, which has no slope
    optimizer = so.SparseOpt(SGD(model.parameters(), lr=0.1), topology, so.Static(), correction=mode)
    train(model, optimizer, 3)
    assert weight[neuron].abs().sum() > 0
    assert all(factors.isfinite().all() for factors in optimizer.factors.values())


def test_a_layer_of_zeros_has_finite_factors() -> None:
    model = nn.Linear(4, 3)
    topology = so.sparsify(model, 0.5)
    nn.init.zeros_(model.weight)
    assert so.skew_factors(topology, "measured")["weight"].isfinite().all()


@pytest.mark.parametrize("groups", [1, 2])
def test_neurons_of_a_transposed_convolution(groups: int) -> None:
    layer = nn.ConvTranspose2d(4, 3 * groups, 2, groups=groups, bias=False)
    topology = so.sparsify(layer, 0.3)
    factors = so.skew_factors(topology, "measured")["weight"]
    weight = layer.weight.detach()
    per_group = weight.unflatten(0, (groups, -1))  # (groups, in / groups, out / groups, kernel)
    norms = per_group.double().square().sum((1, 3, 4)).flatten().sqrt()
    torch.testing.assert_close(factors, norms / norms.square().mean().sqrt(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_growth_by_corrected_gradients_goes_by_the_norms(build: Build, loss_of: Any, mode: Any) -> None:
    model, topology = build(0.7)
    method = so.RigL(total_steps=100, every=1, grow_from="corrected")
    optimizer = so.SparseOpt(SGD(model.parameters(), lr=0.1), topology, method, correction=mode)
    loss_of(model, 1).backward()
    name = "0.weight"
    weight = topology.parameters[name]
    assert weight.grad is not None
    corrected = weight.grad * factors_of(weight.detach(), POWERS[mode]).unsqueeze(1).float()
    expected = method.next_mask(topology.masks[name], weight.detach(), corrected, method.drop_fraction_at(1))
    optimizer.step()
    assert torch.equal(topology.masks[name], expected)


@pytest.mark.parametrize("clip", ["active", "paper"])
def test_the_clip_takes_them_whole(build: Build, train: Any, clip: Any) -> None:
    model, topology = build(0.8)
    optimizer = so.SparseOpt(
        *(SGD(model.parameters(), lr=0.1), topology, so.Static()),
        correction="measured",
        max_grad_norm=0.5,
        clip=clip,
    )
    train(model, optimizer, 2)
    assert optimizer.grad_norm is not None
    assert optimizer.grad_norm > 0


def test_decay_goes_by_the_norms_as_well() -> None:
    model = nn.Linear(6, 3, bias=False).double()
    topology = so.sparsify(model, masks={"weight": torch.ones(3, 6, dtype=torch.bool)})
    before = model.weight.detach().clone()
    sgd = SGD(model.parameters(), lr=0.1, weight_decay=0.2)
    optimizer = so.SparseOpt(sgd, topology, so.Static(), correction="angular", correct_decay=True)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    expected = before * (1 - 0.1 * 0.2 * factors_of(before, 2)).unsqueeze(1)
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-12, atol=0)
