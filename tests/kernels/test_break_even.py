"""A network whose zeros become more, or fewer, goes over to the kernels where that pays, and leaves them."""

import logging

import pytest
import torch
from torch import nn

import sparseopt as so
from sparseopt.kernels.linear.chain import SparseChain


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
    calls: list[SparseChain] = []
    forward = SparseChain.forward

    def spy(chain: SparseChain, x: torch.Tensor) -> tuple[torch.Tensor]:
        calls.append(chain)
        return forward(chain, x)

    monkeypatch.setattr(SparseChain, "forward", spy)
    ran = []
    for _ in range(20):
        enough, before = topology.sparsity() >= break_even, len(calls)
        train(model, optimizer, 1)
        ran.append(len(calls) > before)
        assert ran[-1] == enough
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


def test_a_dense_phase_needs_no_memory_of_the_kernels() -> None:
    model = network()
    topology = so.sparsify(model, 0.9)
    so.accelerate(model, topology)
    model(torch.randn(16, 32)).sum().backward()
    (piece,) = model.forward.guarded()  # pyright: ignore[reportFunctionMemberAccess]
    assert piece.sparse._lists is not None
    everything = {name: torch.ones_like(mask) for name, mask in topology.masks.items()}
    topology.replace(everything, {name: mask.numel() for name, mask in everything.items()}, {})
    model(torch.randn(16, 32)).sum().backward()
    assert piece.sparse._lists is None
    assert so.kernels.accelerated_layers(model) == ()
    assert so.kernels.accelerated_layers(model, waiting=True) == ("0", "3", "6")


def test_a_compiler_sees_what_runs_densely() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    model = network().eval()
    so.accelerate(model, so.sparsify(model, 0.3))
    x = torch.randn(16, 32)
    expected = model(x)
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), expected)
    assert any("linear" in str(graph.graph) for graph in graphs)


def test_layers_of_another_model_are_told_of_as_such(caplog: pytest.LogCaptureFixture) -> None:
    so.accelerate(network(), so.sparsify(network(), 0.9), layers=("0",))
    assert "the topology is of another model" in caplog.text


def test_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    topology = so.sparsify(model, 0.3, distribution="uniform")
    so.accelerate(model, topology)
    assert caplog.records[0].levelname == "WARNING"
    assert "not accelerated for now" in caplog.text
    waiting = "dense: 30.0% zeros in the layers that run together, which pays from 50% on"
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
