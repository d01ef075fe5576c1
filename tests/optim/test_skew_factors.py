"""The factor of neuron i is sqrt(1 - s_i) / sqrt(1 - s_avg)."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]

GLOBAL = (1 / 4 + 2 / 4 + 3 / 4 + 3 / 3 + 1 / 3) / 5  # mean density of the five neurons of `by_hand`
OVERALL = (1 + 2 + 3 + 3 + 1) / (3 * 4 + 2 * 3)  # share of active weights


@pytest.mark.parametrize(
    ("mode", "first", "second"),
    [
        ("layer", [1 / 2, 1, 3 / 2], [3 / 2, 1 / 2]),
        ("global", [0.25 / GLOBAL, 0.5 / GLOBAL, 0.75 / GLOBAL], [1 / GLOBAL, 1 / 3 / GLOBAL]),
        ("overall", [0.25 / OVERALL, 0.5 / OVERALL, 0.75 / OVERALL], [1 / OVERALL, 1 / 3 / OVERALL]),
        ("unnormalized", [0.25, 0.5, 0.75], [1, 1 / 3]),
    ],
)
def test_factors_by_hand(by_hand: Network, mode: Any, first: list[float], second: list[float]) -> None:
    factors = so.skew_factors(by_hand[1], mode)
    for name, squares in {"0.weight": first, "1.weight": second}.items():
        expected = torch.tensor([math.sqrt(x) for x in squares], dtype=torch.float64)
        torch.testing.assert_close(factors[name], expected, rtol=1e-15, atol=0)


def linear_with(fan_in: list[int], inputs: int) -> so.Topology:
    model = nn.Linear(inputs, len(fan_in), bias=False)
    mask = torch.arange(inputs) < torch.tensor(fan_in).unsqueeze(1)
    return so.sparsify(model, masks={"weight": mask})


@given(neurons=st.integers(1, 60), inputs=st.integers(1, 60), data=st.data())
def test_equal_fan_in_gives_exactly_one(neurons: int, inputs: int, data: st.DataObject) -> None:
    fan_in = data.draw(st.integers(1, inputs))
    factors = so.skew_factors(linear_with([fan_in] * neurons, inputs), "layer")["weight"]
    assert (factors == 1).all()


@given(fan_in=st.lists(st.integers(0, 9), min_size=2, max_size=20).filter(any))
def test_the_mean_square_of_a_layers_factors_is_one(fan_in: list[int]) -> None:
    factors = so.skew_factors(linear_with(fan_in, 9), "layer")["weight"]
    assert math.isclose(float(factors.square().mean()), 1, rel_tol=1e-12)
    assert [f == 0 for f in factors.tolist()] == [n == 0 for n in fan_in]  # no inputs: 0, never NaN


@pytest.mark.parametrize("groups", [1, 2])
def test_neurons_of_a_transposed_convolution_lie_on_axis_one_of_each_group(groups: int) -> None:
    layer = nn.ConvTranspose2d(4, 3 * groups, 2, groups=groups, bias=False)
    mask = torch.ones(4, 3, 2, 2, dtype=torch.bool)
    mask[: 4 // groups, 2] = False  # output 2 of the first group keeps nothing
    mask[0, 2, 0, 0] = True
    topology = so.sparsify(layer, masks={"weight": mask})
    inputs = 4 // groups * 4
    expected = torch.ones(3 * groups, dtype=torch.float64)
    expected[2] = math.sqrt(1 / inputs)
    torch.testing.assert_close(so.skew_factors(topology, "unnormalized")["weight"], expected)
    optimizer = so.SparseOpt(
        torch.optim.SGD(layer.parameters(), lr=1.0), topology, so.Static(), correction="unnormalized"
    )
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.ones_like(layer.weight)
    optimizer.step()
    moved = before - layer.weight.detach()
    torch.testing.assert_close(moved[0, 2, 0, 0], torch.tensor(math.sqrt(1 / inputs)))
    torch.testing.assert_close(moved[:, :2], torch.ones(4, 2, 2, 2))


def test_factors_follow_the_masks(build: Callable[..., Network], train: Callable[..., None]) -> None:
    model, topology = build()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = so.SparseOpt(base, topology, so.SET(total_steps=100, every=3))
    before = optimizer.factors
    train(model, optimizer, 3)
    expected = so.skew_factors(topology, "layer")
    assert any((before[name] != optimizer.factors[name]).any() for name in before)
    for name, factor in optimizer.factors.items():
        torch.testing.assert_close(factor, expected[name].float(), rtol=0, atol=0)


def test_an_own_correction_is_asked_again_after_every_update(
    build: Callable[..., Network], train: Callable[..., None]
) -> None:
    versions: list[int] = []

    def own(topology: so.Topology) -> dict[str, Tensor]:
        versions.append(topology.version)
        return {name: 0 * topology.neuron_sparsity(name) for name in list(topology.layers)[:1]}

    model, topology = build()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = so.SparseOpt(base, topology, so.SET(total_steps=100, every=4), correction=own)
    first, *others = (parameter.detach().clone() for parameter in topology.parameters.values())
    train(model, optimizer, 3)
    now = [parameter.detach() for parameter in topology.parameters.values()]
    assert torch.equal(now[0], first)  # its factors are 0
    # layers not named move as usual
    assert not any(torch.equal(*pair) for pair in zip(now[1:], others, strict=True))
    train(model, optimizer, 1, first=4)
    assert sorted(set(versions)) == [0, 1]
