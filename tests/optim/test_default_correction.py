"""What correction is in force by default: the paper's before BatchNorm, and none with methods that go by gradients."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]
Build = Callable[..., Network]
Train = Callable[..., None]

BY_GRADIENT = [
    so.RigL(total_steps=40, every=5),
    so.GSE(total_steps=40, every=5),
    so.SRigL(total_steps=40, every=5),
    so.SNFS(total_steps=40, every=5),
    so.MEST(total_steps=40, every=5),
    so.NM(so.RigL(total_steps=40, every=5)),
]
PLAIN_SCORES = [so.Static(), so.SET(total_steps=40, every=5), so.DSR(total_steps=40, every=5)]


def wrapped(build: Build, method: so.Method, **options: Any) -> tuple[nn.Sequential, so.SparseOpt]:
    model, topology = build(masks="2:4") if isinstance(method, so.NM) else build()
    return model, so.SparseOpt(
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), topology, method, **options
    )


@pytest.mark.parametrize("method", PLAIN_SCORES, ids=lambda method: type(method).__name__)
def test_methods_that_read_no_gradient_are_corrected_before_batch_norm(
    build: Build, method: so.Method
) -> None:
    _, optimizer = wrapped(build, method)
    expected = so.skew_factors(optimizer.topology, "layer")
    assert set(optimizer.factors) == set(expected)
    for name, factors in optimizer.factors.items():
        torch.testing.assert_close(factors.double(), expected[name])


@pytest.mark.parametrize("method", BY_GRADIENT, ids=lambda method: type(method).__name__)
def test_methods_that_go_by_gradients_train_as_without_a_correction(
    build: Build, train: Train, method: so.Method, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        model, optimizer = wrapped(build, method)
    assert f"no skew correction with {type(method).__name__}, by default" in caplog.text
    assert optimizer.factors == {}
    caplog.clear()
    plain, uncorrected = wrapped(build, method, correction="none")
    train(model, optimizer, 25)
    train(plain, uncorrected, 25)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert "no skew correction" not in caplog.text  # who says what she wants is not told


def test_growth_by_corrected_gradients_asks_for_the_correction(build: Build) -> None:
    _, optimizer = wrapped(build, so.RigL(total_steps=40, every=5, grow_from="corrected"))
    assert set(optimizer.factors) == set(optimizer.topology.layers)


def test_rigl_is_corrected_where_that_is_asked_for(build: Build, train: Train) -> None:
    method = so.RigL(total_steps=40, every=5)
    (plain, without), (model, optimizer) = (
        wrapped(build, method, correction=name) for name in ("none", "layer")
    )
    train(plain, without, 4)
    train(model, optimizer, 4)
    assert set(optimizer.factors) == set(optimizer.topology.layers)
    first, second = next(plain.parameters()), next(model.parameters())
    assert not torch.equal(first, second)


def test_the_default_follows_another_method_in_mid_training_and_says_so(
    build: Build, train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = wrapped(build, so.RigL(total_steps=40, every=5))
    train(model, optimizer, 12)
    optimizer.method = so.SET(total_steps=40, every=5)
    assert set(optimizer.factors) == set(optimizer.topology.layers)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        optimizer.method = so.SET(total_steps=80, every=5)
        assert not caplog.records  # as before
        optimizer.method = so.RigL(total_steps=40, every=5)
    assert "no skew correction with RigL" in caplog.text
    assert optimizer.factors == {}
    train(model, optimizer, 12, first=13)


def test_a_state_from_when_the_default_corrected_rigl_is_told_of(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    state = wrapped(build, so.RigL(total_steps=40, every=5))[1].state_dict()
    assert state["sparseopt"]["configuration"]["correction"] == "none"
    state["sparseopt"]["configuration"]["correction"] = "auto"
    _, optimizer = wrapped(build, so.RigL(total_steps=40, every=5))
    caplog.clear()
    optimizer.load_state_dict(state)
    assert "resuming with correction=none; saved with auto" in caplog.text


def test_a_method_that_brings_the_correction_to_a_sparse_init_warns(build: Build) -> None:
    model, topology = build(init="sparse")
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = so.SparseOpt(sgd, topology, so.RigL(total_steps=40, every=5))
    with pytest.warns(UserWarning, match="over-corrects"):
        optimizer.method = so.SET(total_steps=40, every=5)


def test_without_batch_norm_nobody_is_told_of_a_correction_that_never_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    so.SparseOpt(sgd, so.sparsify(model, 0.5), so.RigL(total_steps=40, every=5))
    assert "trained worse" not in caplog.text
    assert "none of the 2 layers" in caplog.text
    assert "BatchNorm" in caplog.text
