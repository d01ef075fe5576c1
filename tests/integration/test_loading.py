"""Checkpoints are loaded in whatever order a trainer prefers; the weights must arrive whole in each."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import sparseopt as so

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
