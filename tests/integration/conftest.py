"""What the tests of semantics share: a training run to compare with, and what must hold after every one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import sparseopt as so

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def _assert_exactly_sparse(optimizer: so.SparseOpt) -> None:
    """As many active weights as at the start, the rest exactly 0, and the factors the masks' own."""
    topology = optimizer.topology
    for name, mask in topology.masks.items():
        weight = topology.parameters[name].detach()
        assert int(mask.sum()) == topology.active(name)
        assert weight.isfinite().all()
        assert not weight[~mask].any()
        if name not in optimizer.factors:
            continue  # no BatchNorm behind it: not corrected
        fan_in = topology.layers[name].by_neuron(mask).sum(1).double()
        expected = (fan_in / fan_in.mean()).sqrt()
        torch.testing.assert_close(optimizer.factors[name].double(), expected, rtol=1e-6, atol=0)


def _assert_same_topology(one: so.Topology, other: so.Topology) -> None:
    """The same masks, now and in the union of all masks so far."""
    assert one.masks.keys() == other.masks.keys()
    for name, mask in one.masks.items():
        assert torch.equal(mask, other.masks[name]), name
    assert one.itop_rate() == other.itop_rate()


@pytest.fixture
def assert_exactly_sparse() -> Callable[[so.SparseOpt], None]:
    return _assert_exactly_sparse


@pytest.fixture
def assert_same_topology() -> Callable[[so.Topology, so.Topology], None]:
    return _assert_same_topology


@pytest.fixture
def whole_numbers() -> Callable[..., Tensor]:
    """Tensors of small whole numbers: sums and products of a few of them are exact in every float format."""

    def draw(*shape: int, key: int | str = 0) -> Tensor:
        return torch.randint(-2, 3, shape, generator=so.topology.generator(0, "whole numbers", key)).float()

    return draw
