import pytest
import torch
from torch import nn

import sparseopt as so
from sparseopt.lab.config.controls import correction, layerwise, shuffled


@pytest.fixture
def topology() -> so.Topology:
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 8))
    return so.sparsify(model, 0.8, seed=3)


def test_shuffled_gives_each_layer_its_own_factors_in_another_order(topology: so.Topology) -> None:
    right, wrong = so.skew_factors(topology, "layer"), shuffled(topology)
    for name, factors in right.items():
        assert torch.equal(wrong[name].sort().values, factors.sort().values)
        assert not torch.equal(wrong[name], factors)


def test_shuffled_is_decided_by_the_seed(topology: so.Topology) -> None:
    assert all(
        torch.equal(a, b)
        for a, b in zip(shuffled(topology).values(), shuffled(topology).values(), strict=True)
    )
    before = shuffled(topology)["0.weight"]
    topology.seed = 4
    assert not torch.equal(shuffled(topology)["0.weight"], before)


def test_layerwise_is_the_root_of_the_relative_density_of_the_layer(topology: so.Topology) -> None:
    sparsity = {name: topology.neuron_sparsity(name) for name in topology.layers}
    average = torch.cat(list(sparsity.values())).mean()
    for name, factors in layerwise(topology).items():
        expected = ((1 - sparsity[name].mean()) / (1 - average)).sqrt()
        assert factors.shape == sparsity[name].shape
        assert torch.allclose(factors, expected.expand_as(factors), rtol=1e-12)


def test_other_names_are_the_librarys_own() -> None:
    assert [correction(name) for name in ("layer", "global", "unnormalized", "none")] == [
        *("layer", "global", "unnormalized", "none"),
    ]


@pytest.mark.parametrize("name", ["shuffled", "layerwise"])
def test_controls_serve_as_corrections(name: str) -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 8))
    topology = so.sparsify(model, 0.8)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    control = correction(name)  # pyright: ignore[reportArgumentType]
    optimizer = so.SparseOpt(sgd, topology, so.SET(total_steps=100, every=2), correction=control)
    for _ in range(5):
        model(torch.randn(4, 20)).square().sum().backward()
        optimizer.step()
    assert set(optimizer.factors) == set(topology.layers)
