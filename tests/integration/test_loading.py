"""Checkpoints are loaded in whatever order a trainer prefers; the weights must arrive whole in each."""

import copy
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import nn

import sparseopt as so
from sparseopt.optim.fit import why_not_packed
from tests.every_method import METHODS, methods

STEPS = 30

Run = tuple[nn.Module, so.SparseOpt]
Saved = dict[str, Any]


def build() -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    topology = so.sparsify(model, 0.7)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, so.SparseOpt(adam, topology, so.RigL(total_steps=STEPS, every=4))


def train(model: nn.Module, optimizer: so.SparseOpt, until: int) -> None:
    while optimizer.steps < until:
        draw = so.topology.generator(0, "batch", optimizer.steps)
        inputs, labels = torch.randn(16, 12, generator=draw), torch.randint(4, (16,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def weights_first(run: Run, saved: Saved) -> None:
    run[0].load_state_dict(saved["model"])
    run[1].load_state_dict(saved["optimizer"])


def optimizer_first(run: Run, saved: Saved) -> None:
    run[1].load_state_dict(saved["optimizer"])
    run[0].load_state_dict(saved["model"])


def own_state_in_between(run: Run, saved: Saved) -> None:
    """Accelerate, and with it the Hugging Face Trainer, loads an optimizer's own state back to move it to its device."""
    run[0].load_state_dict(saved["model"])
    run[1].load_state_dict(run[1].state_dict())
    run[1].load_state_dict(saved["optimizer"])


@pytest.mark.parametrize("load", [weights_first, optimizer_first, own_state_in_between])
def test_any_order_of_loading_resumes_the_same_run(load: Callable[[Run, Saved], None]) -> None:
    model, optimizer = build()
    train(model, optimizer, STEPS // 2)
    saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    resumed = build()
    load(resumed, saved)
    for name, tensor in resumed[0].state_dict().items():
        assert torch.equal(tensor, saved["model"][name]), name
    reference = build()
    train(*reference, STEPS)
    train(*resumed, STEPS)
    for name, tensor in reference[0].state_dict().items():
        assert torch.equal(tensor, resumed[0].state_dict()[name]), name


Storage = Literal["dense", "packed"]
Loading = Callable[[nn.Module, Callable[[], so.SparseOpt], Saved], so.SparseOpt]


def weights_then_optimizer(model: nn.Module, make: Callable[[], so.SparseOpt], saved: Saved) -> so.SparseOpt:
    """The usual order of those who write their own loop."""
    model.load_state_dict(saved["model"])
    optimizer = make()
    optimizer.load_state_dict(saved["optimizer"])
    return optimizer


def own_state_first(model: nn.Module, make: Callable[[], so.SparseOpt], saved: Saved) -> so.SparseOpt:
    model.load_state_dict(saved["model"])
    optimizer = make()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.load_state_dict(saved["optimizer"])
    return optimizer


def weights_last(model: nn.Module, make: Callable[[], so.SparseOpt], saved: Saved) -> so.SparseOpt:
    optimizer = make()
    optimizer.load_state_dict(saved["optimizer"])
    model.load_state_dict(saved["model"])
    return optimizer


def weights_in_between(model: nn.Module, make: Callable[[], so.SparseOpt], saved: Saved) -> so.SparseOpt:
    optimizer = make()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return optimizer


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))


def sparse(model: nn.Module, name: str, storage: Storage) -> Callable[[], so.SparseOpt]:
    method = methods(STEPS)[name]
    start = method.starts_at()
    topology = so.sparsify(model, 0.5 if start is None else start, storage=storage)
    return lambda: so.SparseOpt(torch.optim.AdamW(model.parameters(), lr=1e-2), topology, method)


CASES = [
    (name, storage)
    for name, method in METHODS.items()
    for storage in ("dense", "packed")
    if storage == "dense" or why_not_packed(method) is None
]


@pytest.mark.parametrize("load", [weights_then_optimizer, own_state_first, weights_last, weights_in_between])
@pytest.mark.parametrize(("name", "storage"), CASES)
def test_every_method_resumes_in_any_order(name: str, storage: Storage, load: Loading) -> None:
    model = network()
    optimizer = sparse(model, name, storage)()
    train(model, optimizer, STEPS // 2)
    saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    other = network()
    resumed = load(other, sparse(other, name, storage), saved)
    for key, tensor in other.state_dict().items():
        assert torch.equal(tensor, saved["model"][key]), key
    train(model, optimizer, STEPS)
    train(other, resumed, STEPS)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[key]), key


@pytest.mark.parametrize(("name", "storage"), CASES)
def test_a_fresh_run_is_the_same_whether_its_own_state_is_loaded_first_or_not(
    name: str, storage: Storage
) -> None:
    runs = []
    for again in (False, True):
        model = network()
        optimizer = sparse(model, name, storage)()
        if again:
            optimizer.load_state_dict(optimizer.state_dict())
        runs.append(model)
        train(model, optimizer, 4)
    for key, tensor in runs[0].state_dict().items():
        assert torch.equal(tensor, runs[1].state_dict()[key]), key


def test_a_frozen_layer_is_held_to_its_mask_as_well() -> None:
    model = network()
    make = sparse(model, "rigl", "dense")
    model.load_state_dict(network().state_dict())  # dense weights
    optimizer = make()
    weight = optimizer.topology.parameters["0.weight"].requires_grad_(False)
    train(model, optimizer, 1)
    assert weight.count_nonzero() == optimizer.topology.active("0.weight")


def test_random_masks_over_a_sparse_network_are_told(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    so.sparsify(model, 0.7)
    assert "sparse already" not in caplog.text
    other = network()
    other.load_state_dict(model.state_dict())
    so.sparsify(other, 0.7)
    assert "sparse already" in caplog.text
    assert "call sparsify first, then load" in caplog.text
