"""Renormalisation: all gradients times c / max(norm, c). What the norm is taken over is the difference between the modes."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]

# `by_hand` with gradient 2 in every weight of both layers. Squares of the norms, from the masks in its docstring:
ACTIVE = 4 * (6 + 4)  # 6 and 4 active weights
# fan-in x squared factor, neuron by neuron
ACTIVE_LAYER = 4 * (1 * 1 / 2 + 2 * 1 + 3 * 3 / 2 + 3 * 3 / 2 + 1 * 1 / 2)
DENSE = 4 * (12 + 6)
# all inputs x density: the dense gradient scaled by D
DENSE_D = 4 * (4 * (1 / 4 + 2 / 4 + 3 / 4) + 3 * (1 + 1 / 3))
MEAN = {"layer": {"0.weight": 1 / 2, "1.weight": 2 / 3}, "global": {"0.weight": 17 / 30, "1.weight": 17 / 30}}
DENSITY = {"0.weight": [1 / 4, 2 / 4, 3 / 4], "1.weight": [1, 1 / 3]}


def step_with_constant_gradient(
    network: Network, **options: Any
) -> tuple[so.SparseOpt, dict[str, torch.Tensor]]:
    """One step of lr 1 with gradient 2 everywhere; the optimizer, and how far each weight moved."""
    model, topology = network
    before = {name: parameter.detach().clone() for name, parameter in topology.parameters.items()}
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=1.0), topology, so.Static(), **options)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    optimizer.step()
    return optimizer, {
        name: before[name] - parameter.detach() for name, parameter in topology.parameters.items()
    }


def assert_moved(
    topology: so.Topology, moved: dict[str, torch.Tensor], per_neuron: dict[str, list[float]]
) -> None:
    for name, values in per_neuron.items():
        expected = torch.tensor(values, dtype=torch.float64).unsqueeze(1) * topology.masks[name]
        torch.testing.assert_close(moved[name], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("correction", "norm"), [("none", ACTIVE), ("layer", ACTIVE_LAYER)])
def test_active_takes_the_norm_of_what_moves_the_weights(
    by_hand: Network, correction: Any, norm: float
) -> None:
    optimizer, moved = step_with_constant_gradient(by_hand, correction=correction, max_grad_norm=3.0)
    assert optimizer.grad_norm is not None
    assert math.isclose(optimizer.grad_norm.item(), math.sqrt(norm), rel_tol=1e-12)
    moved_norm = math.sqrt(sum(float(x.square().sum()) for x in moved.values()))
    assert math.isclose(moved_norm, 3.0, rel_tol=1e-12)
    mean = MEAN["layer"] if correction == "layer" else None
    scale = 2 * 3 / math.sqrt(norm)
    factors = {n: [math.sqrt(d / mean[n]) if mean else 1.0 for d in values] for n, values in DENSITY.items()}
    assert_moved(by_hand[1], moved, {name: [scale * f for f in values] for name, values in factors.items()})


def test_paper_clips_the_baseline_by_the_dense_norm(by_hand: Network) -> None:
    optimizer, moved = step_with_constant_gradient(
        by_hand, correction="none", max_grad_norm=1.5, clip="paper"
    )
    assert optimizer.grad_norm is not None
    assert math.isclose(optimizer.grad_norm.item(), math.sqrt(DENSE), rel_tol=1e-12)
    scale = 2 * 1.5 / math.sqrt(DENSE)
    assert_moved(by_hand[1], moved, {"0.weight": [scale] * 3, "1.weight": [scale] * 2})


@pytest.mark.parametrize("correction", ["layer", "global", "unnormalized"])
@pytest.mark.parametrize("max_norm", [1.5, 1e6])
def test_paper_clips_by_the_norm_scaled_by_d_and_divides_by_the_average_afterwards(
    by_hand: Network, correction: Any, max_norm: float
) -> None:
    optimizer, moved = step_with_constant_gradient(
        by_hand, correction=correction, max_grad_norm=max_norm, clip="paper"
    )
    assert optimizer.grad_norm is not None
    assert math.isclose(optimizer.grad_norm.item(), math.sqrt(DENSE_D), rel_tol=1e-12)
    coefficient = max_norm / max(math.sqrt(DENSE_D), max_norm)
    mean = MEAN.get(correction, {"0.weight": 1, "1.weight": 1})
    assert_moved(
        by_hand[1],
        moved,
        {
            name: [2 * coefficient * math.sqrt(d / mean[name]) for d in values]
            for name, values in DENSITY.items()
        },
    )


@pytest.mark.parametrize("clip", ["active", "paper"])
def test_infinity_measures_without_clipping(by_hand: Network, clip: Any) -> None:
    optimizer, moved = step_with_constant_gradient(
        by_hand, correction="none", max_grad_norm=float("inf"), clip=clip
    )
    assert optimizer.grad_norm is not None
    assert math.isclose(
        optimizer.grad_norm.item(), math.sqrt(ACTIVE if clip == "active" else DENSE), rel_tol=1e-12
    )
    assert_moved(by_hand[1], moved, {"0.weight": [2.0] * 3, "1.weight": [2.0] * 2})


def test_a_norm_below_the_maximum_leaves_the_gradient_alone(by_hand: Network) -> None:
    _, moved = step_with_constant_gradient(by_hand, correction="none", max_grad_norm=100.0)
    assert_moved(by_hand[1], moved, {"0.weight": [2.0] * 3, "1.weight": [2.0] * 2})


def test_the_norm_covers_parameters_that_are_not_sparse() -> None:
    model = nn.Linear(2, 1).double()
    topology = so.sparsify(model, masks={"weight": torch.tensor([[True, False]])})
    base = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = so.SparseOpt(base, topology, so.Static(), max_grad_norm=1.0)
    bias = model.bias.item()
    model.weight.grad, model.bias.grad = torch.tensor([[3.0, 7.0]]).double(), torch.tensor([4.0]).double()
    optimizer.step()
    assert optimizer.grad_norm is not None
    assert optimizer.grad_norm.item() == 5.0  # (3, 4): the 7 is masked
    assert math.isclose(bias - model.bias.item(), 4 / 5, rel_tol=1e-12)


@pytest.mark.parametrize("clip", ["active", "paper"])
def test_the_norm_covers_sparse_gradients_of_embeddings(clip: Any) -> None:
    """A word that comes twice has the sum of two gradients, and it is clipped as that of a dense embedding is."""
    weights = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(6, 4, sparse=sparse), nn.Linear(4, 3)).double()
        topology = so.sparsify(model, 0.5)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = so.SparseOpt(sgd, topology, so.Static(), max_grad_norm=0.01, clip=clip)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.tensor([1, 1, 4])).square().sum().backward()
            optimizer.step()
        weights.append((optimizer.grad_norm, *model.parameters()))
    for mine, its in zip(*weights, strict=True):
        torch.testing.assert_close(mine, its)


def test_without_a_maximum_no_norm_is_measured(by_hand: Network) -> None:
    optimizer, _ = step_with_constant_gradient(by_hand)
    assert optimizer.grad_norm is None
