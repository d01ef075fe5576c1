"""Weights, methods and gradients that come from elsewhere between two steps."""

import copy
import logging
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sparseopt as so

Storage = Literal["dense", "packed"]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(16, 20, generator=draw), torch.randint(4, (16,), generator=draw)


def sparse(
    storage: Storage = "dense", method: so.Method | None = None, seed: int = 0
) -> tuple[nn.Sequential, so.Topology, so.SparseOpt]:
    model = network()
    topology = so.sparsify(model, 0.5, storage=storage, seed=seed)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return (
        model,
        topology,
        so.SparseOpt(sgd, topology, method or so.RigL(total_steps=100, every=3), correction="layer"),
    )


def steps(model: nn.Module, optimizer: so.SparseOpt, count: int) -> None:
    x, y = data()
    for _ in range(count):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def outside(topology: so.Topology) -> int:
    return sum(int((topology.weight(name)[~mask] != 0).sum()) for name, mask in topology.masks.items())


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_weights_of_other_masks_are_left_out_with_a_line_in_the_log(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    trained, _, optimizer = sparse(storage, seed=1)
    steps(trained, optimizer, 7)
    model, topology, optimizer = sparse(storage)
    steps(model, optimizer, 1)
    assert not caplog.records
    model.load_state_dict(trained.state_dict())
    steps(model, optimizer, 1)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "topology.load_state_dict" in record.getMessage()
    assert outside(topology) == 0
    steps(model, optimizer, 2)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("storage", ["dense", "packed"])
@pytest.mark.parametrize("model_first", [True, False])
def test_weights_with_their_masks_are_restored_whole_and_silently(
    storage: Storage, model_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, topology, optimizer = sparse(storage)
    steps(model, optimizer, 4)
    best = copy.deepcopy((model.state_dict(), topology.state_dict()))
    steps(model, optimizer, 8)
    parts = (model, topology) if model_first else (topology, model)
    for part in parts:
        part.load_state_dict(best[0] if part is model else best[1])
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, best[0][name])
    steps(model, optimizer, 1)
    assert not caplog.records


def test_a_packed_network_that_lacks_what_was_loaded_says_so_when_it_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dense = network(1)
    model, *_ = sparse("packed")
    model.load_state_dict(dense.state_dict())
    for _ in range(3):
        model(data()[0])
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_frozen_layer_is_held_to_its_mask_too() -> None:
    dense = network(1)
    model, topology, optimizer = sparse(method=so.SET(total_steps=100, every=50))
    steps(model, optimizer, 2)
    model[0].weight.requires_grad_(False)
    model.load_state_dict(dense.state_dict())
    steps(model, optimizer, 1)
    assert outside(topology) == 0


def test_whoever_writes_at_every_step_is_not_told_at_every_step(caplog: pytest.LogCaptureFixture) -> None:
    model, topology, optimizer = sparse(method=so.Static())
    for _ in range(5):
        steps(model, optimizer, 1)
        with torch.no_grad():
            topology.parameters["0.weight"].add_(0.01)
    steps(model, optimizer, 1)
    assert len(caplog.records) == 1
    assert outside(topology) == 0


def test_two_around_one_optimizer_are_refused() -> None:
    first, second = network(0), network(1)
    sgd = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    kept = so.SparseOpt(sgd, so.sparsify(first, 0.8), so.Static())
    other = so.sparsify(second, 0.8)
    with pytest.raises(ValueError, match="ModuleList"):
        so.SparseOpt(so.HAM(sgd), other, so.Static())
    del kept
    so.SparseOpt(sgd, other, so.Static())


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_another_method_takes_over(storage: Storage) -> None:
    model, topology, optimizer = sparse(storage, so.Static())
    before = {name: mask.clone() for name, mask in topology.masks.items()}
    counts = {name: int(mask.sum()) for name, mask in before.items()}
    steps(model, optimizer, 4)
    assert all(torch.equal(mask, before[name]) for name, mask in topology.masks.items())
    optimizer.method = so.RigL(total_steps=100, every=5)  # due at the very next step
    steps(model, optimizer, 1)
    assert optimizer.steps == 5
    assert any(not torch.equal(mask, before[name]) for name, mask in topology.masks.items())
    assert {name: int(mask.sum()) for name, mask in topology.masks.items()} == counts
    assert isinstance(copy.deepcopy(optimizer).method, so.RigL)


def test_a_method_that_cannot_take_over_is_refused() -> None:
    *_, optimizer = sparse(method=so.Static())
    with pytest.raises(ValueError, match="TopKAST"):
        optimizer.method = so.TopKAST(total_steps=100)
    with pytest.raises(ValueError, match="GMP"):
        optimizer.method = so.GMP(total_steps=100, sparsity=0.9)
    with pytest.raises(TypeError, match="method"):
        optimizer.method = "rigl"  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(optimizer.method, so.Static)


@pytest.mark.parametrize("log_gradients", ["before", "after"])
def test_gradients_that_are_only_looked_at_do_not_count_for_growth(log_gradients: str) -> None:
    """`torch.autograd.grad` adds to no parameter's gradient: neither storage may grow by it."""
    masks = []
    kinds: tuple[Storage, Storage] = ("dense", "packed")
    for storage in kinds:
        model, topology, optimizer = sparse(storage, so.RigL(total_steps=100, every=2))
        for parameter in topology.parameters.values():
            parameter.data = parameter.data.double()
        model.double()
        x, y = data()
        for _ in range(4):
            optimizer.zero_grad()
            loss = cross_entropy(model(x.double()), y)
            looked_at = 50 * model(x.double().flip(0)).square().mean()
            if log_gradients == "before":
                torch.autograd.grad(looked_at, list(model.parameters()))
            loss.backward()
            if log_gradients == "after":
                torch.autograd.grad(looked_at, list(model.parameters()))
            optimizer.step()
        masks.append({name: mask.clone() for name, mask in topology.masks.items()})
    for name in masks[0]:
        assert torch.equal(masks[0][name], masks[1][name]), name


def test_gradients_made_by_hand_do_not_pass_for_a_backward_pass() -> None:
    model, _, optimizer = sparse("packed", so.RigL(total_steps=100, every=1))
    x, y = data()
    parameters = list(model.parameters())
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(cross_entropy(model(x), y), parameters), strict=True
    ):
        parameter.grad = gradient
    with pytest.raises(RuntimeError, match="backward"):
        optimizer.step()


def test_what_else_the_base_offers_is_offered() -> None:
    class ScheduleFree(torch.optim.SGD):
        mode = "train"

        def eval(self) -> None:
            self.mode = "eval"

    model = network()
    base = ScheduleFree(model.parameters(), lr=0.1)
    optimizer = so.SparseOpt(so.HAM(base), so.sparsify(model, 0.8), so.Static())
    optimizer.eval()  # pyright: ignore[reportAttributeAccessIssue]
    assert base.mode == "eval"
    assert not hasattr(optimizer, "train")
    assert not hasattr(optimizer, "_private")


def test_a_cast_changes_the_factors_as_well() -> None:
    model, _, optimizer = sparse(method=so.Static())
    model.double()
    steps_of = [(name, factor.dtype) for name, factor in optimizer.factors.items()]
    x, y = data()
    cross_entropy(model(x.double()), y).backward()
    optimizer.step()
    assert steps_of
    assert all(factor.dtype == torch.float64 for factor in optimizer.factors.values())
