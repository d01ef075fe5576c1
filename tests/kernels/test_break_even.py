"""A network whose zeros become more, or fewer, goes over to the kernels where that pays, and leaves them."""

import logging

import pytest
import torch
from torch import nn

import sparseopt as so
from sparseopt.kernels.guarded import GuardedPiece


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Linear(32, 48),
        nn.BatchNorm1d(48),
        nn.ReLU(),
        nn.Linear(48, 40),
        nn.BatchNorm1d(40),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.Linear(40, 4))


def train(model: nn.Module, optimizer: so.SparseOpt, steps: int) -> None:
    for step in range(steps):
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("break_even", [0.5, 0.8])
def test_under_gmp_it_goes_over_once_there_are_enough_zeros(
    break_even: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    topology = so.sparsify(model, 0.0)
    method = so.GMP(total_steps=20, every=2, until=0.8, sparsity=0.9)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = so.SparseOpt(sgd, topology, method, correction="none")
    so.accelerate(model, topology, break_even=break_even)
    zeros, ran = [], []
    on_kernels = GuardedPiece.on_kernels

    def spy(piece: GuardedPiece, inputs: tuple[torch.Tensor, ...]) -> bool:
        ran.append(on_kernels(piece, inputs))
        zeros.append(topology.sparsity())
        return ran[-1]

    monkeypatch.setattr(GuardedPiece, "on_kernels", spy)
    train(model, optimizer, 20)
    assert ran == [each >= break_even for each in zeros]
    assert set(ran) == {True, False}


def test_under_acdc_it_leaves_the_kernels_in_dense_phases() -> None:
    model = network()
    topology = so.sparsify(model, 0.0)
    method = so.ACDC(total_steps=20, sparsity=0.9, warmup=0.1, phase=0.2, until=0.7)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = so.SparseOpt(sgd, topology, method, correction="none")
    so.accelerate(model, topology)
    ran = []
    for _ in range(20):
        train(model, optimizer, 1)
        ran.append(bool(so.kernels.accelerated_layers(model)))
        assert ran[-1] == method.compressed(optimizer.steps)
    assert set(ran) == {True, False}


def test_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    topology = so.sparsify(model, 0.3, distribution="uniform")
    so.accelerate(model, topology)
    assert caplog.records[0].levelname == "WARNING"
    assert "nothing is faster on the kernels yet" in caplog.text
    waiting = "dense: 30% zeros in the layers that run together, too few until there are 50%"
    assert so.kernels.summary(model).count(waiting) == 3
    sparse = {
        name: torch.arange(mask.numel()).view(mask.shape) % 10 == 0 for name, mask in topology.masks.items()
    }
    topology.replace(sparse, {name: int(mask.sum()) for name, mask in sparse.items()}, {})
    assert so.kernels.summary(model).count("sparse") == 3
    caplog.clear()
    with caplog.at_level(logging.INFO):
        so.accelerate(model, topology)
    assert "accelerated Sequential: 3 layers in 1 piece" in caplog.text
