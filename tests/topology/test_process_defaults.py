"""The default device and dtype of a process decide where new tensors are born; they must not decide who is connected to whom."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def model() -> nn.Sequential:
    options = {"device": "cpu", "dtype": torch.float32}
    network = nn.Sequential(nn.Linear(12, 8, **options), nn.ReLU(), nn.Linear(8, 4, **options))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(0.5)
    return network


def results() -> list[Tensor]:
    """Masks and weights of every way to make a network sparse, and of a few steps of training it."""
    tensors: list[Tensor] = []
    for pattern in ("random", "constant", "bimodal:3"):
        tensors += so.topology.fan_in_masks(model(), 0.6, pattern).values()
    drawn = model()
    tensors += so.sparsify(drawn, 0.6, init="sparse").masks.values()
    tensors += [parameter.detach() for parameter in drawn.parameters()]
    trained = model()
    topology = so.sparsify(trained, masks={"0.weight": tensors[0]})
    optimizer = so.SparseOpt(
        torch.optim.SGD(trained.parameters(), lr=0.1), topology, so.SET(total_steps=20, every=2)
    )
    for _ in range(6):
        trained(torch.ones(3, 12, device="cpu", dtype=torch.float32)).sum().backward()
        optimizer.step()
    state = topology.state_dict()
    topology.load_state_dict(state)
    return [*tensors, *topology.masks.values(), *(layer["ever"] for layer in state["layers"].values())]


@pytest.mark.parametrize(
    "defaults", [torch.device("meta"), default_dtype(torch.float64)], ids=["device", "dtype"]
)
def test_the_defaults_of_the_process_change_nothing(defaults: AbstractContextManager[object]) -> None:
    usual = results()
    with defaults:  # meta stands in for the GPU that a process may have made its default
        unusual = results()
    for one, other in zip(unusual, usual, strict=True):
        assert one.device == other.device
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
