"""Builders shared by the tests of the optimizers: a small network, its training, and what must hold after any step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]


def _build(sparsity: float = 0.7, *, seed: int = 0, norm: bool = True, **options: Any) -> Network:
    """A sparse MLP 12-16-10-4, of weight matrices alone where `norm` is False."""
    torch.manual_seed(int(seed))
    widths = [(12, 16), (16, 10), (10, 4)]
    layers: list[nn.Module] = []
    for inputs, outputs in widths:
        layers += [
            nn.Linear(inputs, outputs, bias=norm),
            nn.BatchNorm1d(outputs) if norm else nn.Identity(),
            nn.ReLU(),
        ]
    model = nn.Sequential(*layers[:-1])
    return model, so.sparsify(model, sparsity, seed=seed, **options)


def _loss(model: nn.Module, step: int) -> Tensor:
    """The loss of a batch that depends on the step alone."""
    draw = so.topology.generator(0, "batch", step)
    parameter = next(model.parameters())
    inputs = torch.randn(24, 12, generator=draw).to(parameter.dtype)
    labels = torch.randint(4, (24,), generator=draw)
    return nn.functional.cross_entropy(model(inputs), labels)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 1) -> None:
    for step in range(first, first + steps):
        optimizer.zero_grad()
        _loss(model, step).backward()
        optimizer.step()


def _shaped_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The optimizer's state of a parameter that has one entry a weight."""
    return {
        key: value
        for key, value in optimizer.state[parameter].items()
        if isinstance(value, Tensor) and value.shape == parameter.shape
    }


def _assert_exactly_sparse(optimizer: so.SparseOpt) -> None:
    """Counts as at the start; weights and state outside the masks exactly 0, everything else finite."""
    topology = optimizer.topology
    for name, mask in topology.masks.items():
        parameter = topology.parameters[name]
        assert int(mask.sum()) == topology.active(name)
        for tensor in (parameter.detach(), *_shaped_state(optimizer, parameter).values()):
            assert tensor.isfinite().all(), name
            assert not tensor[~mask].any(), name


@pytest.fixture
def build() -> Callable[..., Network]:
    return _build


@pytest.fixture
def loss_of() -> Callable[[nn.Module, int], Tensor]:
    return _loss


@pytest.fixture
def train() -> Callable[..., None]:
    return _train


@pytest.fixture
def shaped_state() -> Callable[[torch.optim.Optimizer, Tensor], dict[str, Tensor]]:
    return _shaped_state


@pytest.fixture
def assert_exactly_sparse() -> Callable[[so.SparseOpt], None]:
    return _assert_exactly_sparse


@pytest.fixture
def by_hand() -> Network:
    """Two bias-free float64 layers of 3 and 2 neurons. Fan-in 1, 2, 3 of 4 and 3, 1 of 3."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False)).double()
    with torch.no_grad():
        for layer in model:
            assert isinstance(layer, nn.Linear)
            layer.weight.copy_(torch.arange(1.0, layer.weight.numel() + 1).view_as(layer.weight) / 10)
    masks = {
        "0.weight": torch.tensor([[1, 0, 0, 0], [0, 1, 1, 0], [1, 0, 1, 1]]).bool(),
        "1.weight": torch.tensor([[1, 1, 1], [0, 1, 0]]).bool(),
    }
    return model, so.sparsify(model, masks=masks)
