"""What travels in the state dict, and what happens to a state that does not fit."""

import io
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]
Build = Callable[..., Network]
Train = Callable[..., None]

RIGL = so.RigL(total_steps=80, every=4)


def wrap(network: Network, method: so.Method = RIGL, **options: Any) -> so.SparseOpt:
    base = torch.optim.AdamW(network[0].parameters(), lr=0.01)
    return so.SparseOpt(base, network[1], method, **options)


def through_a_file(state: Any) -> Any:
    """Saved and loaded the safe way: tensors and plain values only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value.detach().clone()]
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in tensors_in(each)]
    return (
        [tensor for each in value for tensor in tensors_in(each)] if isinstance(value, list | tuple) else []
    )


@pytest.mark.parametrize("model_first", [True, False])
def test_a_loaded_state_goes_on_as_the_saved_one(build: Build, train: Train, model_first: bool) -> None:
    saved = build(seed=1)
    optimizer = wrap(saved)
    at_the_start = saved[1].itop_rate()
    train(saved[0], optimizer, 10)
    file = through_a_file({"model": saved[0].state_dict(), "optimizer": optimizer.state_dict()})

    loaded = build(seed=1)
    its_optimizer = wrap(loaded)
    parts = [(loaded[0], file["model"]), (its_optimizer, file["optimizer"])]
    for part, state in parts if model_first else reversed(parts):
        part.load_state_dict(state)
    assert its_optimizer.steps == 10
    assert loaded[1].itop_rate() == saved[1].itop_rate() > at_the_start
    assert its_optimizer.topology.dense_grads.wanted == optimizer.topology.dense_grads.wanted
    for network, each in ((saved, optimizer), (loaded, its_optimizer)):
        train(network[0], each, 10, first=11)
    for one, other in zip(
        tensors_in([saved[0].state_dict(), optimizer.state_dict()]),
        tensors_in([loaded[0].state_dict(), its_optimizer.state_dict()]),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_masks_and_union_take_one_bit_a_weight(build: Build, train: Train) -> None:
    network = build()
    optimizer = wrap(network)
    train(network[0], optimizer, 6)
    own = optimizer.state_dict()["sparseopt"]
    weights = sum(parameter.numel() for parameter in network[1].parameters.values())
    assert sum(tensor.numel() * tensor.itemsize for tensor in tensors_in(own)) == 2 * weights / 8


def test_the_configuration_is_saved_and_a_change_of_it_reported(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    def made(total_steps: int) -> so.SparseOpt:
        method = so.RigL(total_steps=total_steps, every=4, drop_fraction=0.2)
        return wrap(build(), method, max_grad_norm=1.0, correction="none")

    state = through_a_file(made(80).state_dict())
    configuration = state["sparseopt"]["configuration"]
    assert configuration["method"] == "RigL"
    assert configuration["drop_fraction"] == 0.2
    assert configuration["max_grad_norm"] == 1.0
    assert configuration["correction"] == "none"
    with caplog.at_level(logging.WARNING, logger="sparseopt"):
        made(80).load_state_dict(state)
        assert not caplog.records
        made(160).load_state_dict(state)
    assert [record.getMessage() for record in caplog.records] == [
        "resuming with total_steps=160; saved with 80"
    ]


@dataclass(frozen=True)
class Elaborate(so.SET):
    """A method whose settings are not all plain values."""

    score: Callable[[Tensor], Tensor] = torch.abs
    decay: np.float64 = field(default_factory=lambda: np.float64(0.5))
    table: Tensor = field(default_factory=lambda: torch.ones(2), compare=False)


def test_settings_that_are_not_plain_values_can_be_saved_and_compared(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    def fresh() -> so.SparseOpt:
        # described with an address, which is not a setting
        correction = partial(so.skew_factors, mode="global")
        return wrap(build(seed=np.int64(3)), Elaborate(total_steps=np.int64(800)), correction=correction)  # type: ignore[arg-type]

    state = through_a_file(fresh().state_dict())
    assert "partial" in state["sparseopt"]["configuration"]["correction"]
    assert " at 0x" not in str(state["sparseopt"]["configuration"])
    with caplog.at_level(logging.WARNING, logger="sparseopt"):
        fresh().load_state_dict(state)
    assert "was" not in caplog.text  # AdamW and a correction: that is told


def without_own_entry(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != "sparseopt"}


def fewer_groups(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"param_groups": []}


def of_another_format(state: dict[str, Any]) -> dict[str, Any]:
    own = state["sparseopt"]
    return state | {"sparseopt": own | {"topology": own["topology"] | {"format": 99}}}


@pytest.mark.parametrize(
    ("other", "change", "message"),
    [
        ({"sparsity": 0.8}, dict, "active weights in the state"),
        ({"exclude": "0.weight"}, dict, r"only here \['0.weight'\]"),
        ({}, without_own_entry, "saved by another optimizer"),
        ({}, fewer_groups, "parameter groups"),
        ({}, of_another_format, "format 99"),
    ],
    ids=["counts", "layers", "plain optimizer", "groups", "format"],
)
def test_a_state_that_does_not_fit_changes_nothing(
    build: Build, train: Train, other: dict[str, Any], change: Callable[..., dict[str, Any]], message: str
) -> None:
    foreign = build(**other, seed=5)
    its_optimizer = wrap(foreign)
    train(foreign[0], its_optimizer, 5)
    state = change(its_optimizer.state_dict())

    network = build()
    optimizer = wrap(network)
    train(network[0], optimizer, 6)
    before = tensors_in([network[0].state_dict(), optimizer.state_dict()])
    groups = [
        {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)
    after = tensors_in([network[0].state_dict(), optimizer.state_dict()])
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert optimizer.steps == 6
    assert groups == [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]


def test_a_shape_of_another_network_is_named(build: Build) -> None:
    narrow = nn.Linear(6, 4, bias=False)
    wide = nn.Linear(4, 6, bias=False)
    optimizers = [
        so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), so.sparsify(model, 0.5), so.Static())
        for model in (narrow, wide)
    ]
    with pytest.raises(ValueError, match=r"'weight' .*\(4, 6\).*\(6, 4\)"):
        optimizers[1].load_state_dict(optimizers[0].state_dict())


def test_a_saved_state_is_not_changed_by_what_follows(build: Build, train: Train) -> None:
    network = build()
    optimizer = wrap(network)
    train(network[0], optimizer, 5)
    own = optimizer.state_dict()["sparseopt"]
    before = tensors_in(own)
    train(network[0], optimizer, 10, first=6)
    assert all(torch.equal(*pair) for pair in zip(before, tensors_in(own), strict=True))
