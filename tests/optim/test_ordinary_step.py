"""A step that moves weights: mask, correct, then whatever the base optimizer does."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]

LAYER = {"0.weight": [1 / 2, 1, 3 / 2], "1.weight": [3 / 2, 1 / 2]}  # squares of the factors of `by_hand`
GLOBAL = 17 / 30  # its mean density over all neurons
DENSITY = {"0.weight": [1 / 4, 2 / 4, 3 / 4], "1.weight": [3 / 3, 1 / 3]}
SQUARES = {
    "none": {"0.weight": [1, 1, 1], "1.weight": [1, 1]},
    "layer": LAYER,
    "global": {name: [x / GLOBAL for x in values] for name, values in DENSITY.items()},
    "unnormalized": DENSITY,
}


def dense_gradients(model: nn.Module) -> None:
    """Gradient 1, -2, 3, -4, ... in each weight, the inactive ones included."""
    for parameter in model.parameters():
        values = torch.arange(1.0, parameter.numel() + 1, dtype=parameter.dtype)
        values[1::2] *= -1
        parameter.grad = values.view_as(parameter)


def expected_gradients(topology: so.Topology, correction: str) -> dict[str, list[list[float]]]:
    """The gradients above after masking and correction, entry by entry."""
    result = {}
    for name, mask in topology.masks.items():
        rows, width = mask.tolist(), mask.shape[1]
        result[name] = [
            [
                (-1) ** (i * width + j) * (i * width + j + 1) * math.sqrt(SQUARES[correction][name][i])
                if active
                else 0.0
                for j, active in enumerate(row)
            ]
            for i, row in enumerate(rows)
        ]
    return result


@pytest.mark.parametrize("correction", SQUARES)
def test_two_sgd_steps_with_momentum_and_weight_decay_by_hand(by_hand: Network, correction: Any) -> None:
    model, topology = by_hand
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    optimizer = so.SparseOpt(base, topology, so.Static(), correction=correction)
    weights = {name: parameter.tolist() for name, parameter in topology.parameters.items()}
    velocity = {name: [[0.0] * len(row) for row in rows] for name, rows in weights.items()}
    gradients = expected_gradients(topology, correction)
    for _ in range(2):
        dense_gradients(model)
        optimizer.step()
        for name, rows in weights.items():
            for i, row in enumerate(rows):
                for j, weight in enumerate(row):  # weight decay is the base optimizer's: not corrected
                    velocity[name][i][j] = 0.9 * velocity[name][i][j] + gradients[name][i][j] + 0.01 * weight
                    row[j] = weight - 0.1 * velocity[name][i][j]
    for name, parameter in topology.parameters.items():
        expected = torch.tensor(weights[name], dtype=torch.float64)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-13, atol=1e-15)
        assert not parameter[~topology.masks[name]].any()


def test_an_own_correction_multiplies_the_gradient(by_hand: Network) -> None:
    model, topology = by_hand

    def own(topology: so.Topology) -> dict[str, Tensor]:
        return {"1.weight": torch.tensor([2.0, 10.0])}

    optimizer = so.SparseOpt(
        torch.optim.SGD(model.parameters(), lr=1.0), topology, so.Static(), correction=own
    )
    before = {name: parameter.detach().clone() for name, parameter in topology.parameters.items()}
    dense_gradients(model)
    optimizer.step()
    moved = {name: before[name] - parameter.detach() for name, parameter in topology.parameters.items()}
    torch.testing.assert_close(moved["1.weight"], torch.tensor([[2.0, -4.0, 6.0], [0.0, 50.0, 0.0]]).double())
    torch.testing.assert_close(
        moved["0.weight"], torch.tensor(expected_gradients(topology, "none")["0.weight"]).double()
    )


Masks = dict[str, Tensor]


def dense(model: nn.Module) -> Masks:
    return {name: torch.ones_like(p).bool() for name, p in model.named_parameters() if p.dim() == 2}


def constant_fan_in(model: nn.Module) -> Masks:
    """Every neuron has a third of its inputs, in places of its own."""
    places = {name: mask.nonzero().sum(1).view(mask.shape) for name, mask in dense(model).items()}
    return {name: place % 3 == 0 for name, place in places.items()}


def plain(model: nn.Module, masks: Masks) -> torch.optim.Optimizer:
    """The base optimizer alone, of a model whose weights and gradients are masked by other means."""
    for name, parameter in model.named_parameters():
        if name in masks:
            parameter.data.mul_(masks[name])
            parameter.register_hook(masks[name].mul)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


@pytest.mark.parametrize("masks_of", [dense, constant_fan_in])
@pytest.mark.parametrize("max_grad_norm", [None, float("inf")])
def test_homogeneous_connectivity_is_bit_identical_to_the_base_optimizer(
    masks_of: Callable[[nn.Module], Masks], max_grad_norm: float | None
) -> None:
    def sparse(model: nn.Module, masks: Masks) -> torch.optim.Optimizer:
        topology = so.sparsify(model, masks=masks)
        base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        return so.SparseOpt(base, topology, so.Static(), correction="layer", max_grad_norm=max_grad_norm)

    results = []
    for make_optimizer in (sparse, plain):
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Linear(12, 21), nn.BatchNorm1d(21), nn.ReLU(), nn.Linear(21, 9), nn.Linear(9, 4)
        )
        optimizer = make_optimizer(model, masks_of(model))
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(32, 12)), torch.randint(4, (32,))).backward()
            optimizer.step()
        results.append([parameter.detach() for parameter in model.parameters()])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


def test_neurons_without_inputs_stay_silent(assert_exactly_sparse: Callable[[so.SparseOpt], None]) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    mask = torch.ones(5, 6).bool()
    mask[2:4] = False
    topology = so.sparsify(model, masks={"0.weight": mask})
    optimizer = so.SparseOpt(torch.optim.Adam(model.parameters()), topology, so.Static(), correction="global")
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(2, (16,))).backward()
        optimizer.step()
    assert topology.dead_neurons() == 2
    assert_exactly_sparse(optimizer)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("clip", ["active", "paper"])
def test_every_precision_trains(
    dtype: torch.dtype, clip: Any, assert_exactly_sparse: Callable[[so.SparseOpt], None]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
    topology = so.sparsify(model, 0.6)
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = so.SparseOpt(base, topology, so.RigL(total_steps=40, every=4), max_grad_norm=1.0, clip=clip)
    inputs, targets = torch.randn(32, 8, dtype=dtype), torch.randn(32, 4, dtype=dtype)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert_exactly_sparse(optimizer)


@pytest.mark.parametrize("correction", ["none", "layer"])
def test_a_base_optimizer_that_divides_zero_by_zero_leaves_inactive_weights_at_zero(
    build: Callable[..., Network], train: Callable[..., None], correction: Any
) -> None:
    model, topology = build()
    # 0 / sqrt(0) where the gradient is masked
    base = torch.optim.RMSprop(model.parameters(), lr=1e-3, eps=0.0)
    train(model, so.SparseOpt(base, topology, so.Static(), correction=correction), 2)
    for name, mask in topology.masks.items():
        assert not topology.parameters[name][~mask].any()
