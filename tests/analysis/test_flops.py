"""FLOPs against the definition by hand, and against what RigL's authors report for ResNet-50."""

from typing import Any

import pytest
import torch
from torch import nn

import sparseopt as so
from sparseopt.__main__ import main
from sparseopt.analysis.flops import NO_WEIGHT, Flops, at_densities, forward_flops
from sparseopt.lab.models import ResNet50


def test_layers_by_hand() -> None:
    """Two for every weight, position and image; bias, normalisation and activation are not counted."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=2), nn.ConvTranspose2d(12, 6, 2, stride=2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)),
    )
    assert forward_flops(model, torch.empty(5, 3, 10, 10)) == {
        "0.weight": 2 * 5 * 100 * 8 * 3 * 9,
        "3.weight": 2 * 5 * 25 * 12 * 4 * 9,
        "4.weight": 2 * 5 * 25 * 12 * 6 * 4,  # every input pixel meets every weight
        "7.weight": 2 * 5 * 6 * 4,
    }


def test_attention_by_hand() -> None:
    """Projections belong to their weights; the scores, and what they weigh, to none."""
    batch, length, width = 2, 10, 64
    attention = nn.MultiheadAttention(width, 4, batch_first=True)
    x = torch.empty(batch, length, width)
    assert forward_flops(attention, x, x, x) == {
        "in_proj_weight": 2 * batch * length * width * 3 * width,
        "out_proj.weight": 2 * batch * length * width * width,
        NO_WEIGHT: 2 * (2 * batch * length * length * width),
    }


def test_packed_and_parametrised_weights_cost_what_is_active() -> None:
    def network() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10))

    normed = network()
    nn.utils.parametrizations.weight_norm(normed[2])
    for model, storage in ((network(), "dense"), (network(), "packed"), (normed, "dense")):
        topology = so.sparsify(model, 0.5, distribution="uniform", storage=storage)  # pyright: ignore
        cost = so.analysis.count_flops(model, topology, torch.empty(1, 3, 8, 8))
        assert cost == Flops(2 * (36 * 8 * 27 + 2880), 36 * 8 * 27 + 2880)


def test_a_weight_used_twice_counts_twice() -> None:
    layer = nn.Linear(8, 8)
    assert forward_flops(nn.Sequential(layer, nn.ReLU(), layer), torch.empty(1, 8)) == {
        "0.weight": 2 * 2 * 64
    }


def test_counting_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    topology = so.sparsify(model, 0.5)
    so.analysis.count_flops(model, topology, torch.randn(4, 8))
    assert model.training
    assert next(model.parameters()).device.type == "cpu"
    assert torch.equal(model[1].running_mean, before["1.running_mean"])  # pyright: ignore[reportArgumentType]


def test_sparse_cost_follows_the_densities() -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))
    topology = so.sparsify(model, None, distribution={"0.weight": 0.75, "2.weight": 0.5})
    cost = so.analysis.count_flops(model, topology, torch.empty(1, 20))
    assert cost.dense == 2 * (600 + 300)
    assert cost.sparse == 2 * (150 + 150)
    assert cost.inference == pytest.approx(1 / 3)


def test_training_counts_the_steps_that_read_the_dense_gradient() -> None:
    cost = Flops(dense=1000, sparse=100)
    assert cost.training(so.Static()) == pytest.approx(0.1)
    assert cost.training(so.SET(total_steps=1000, every=100)) == pytest.approx(0.1)
    # RigL: updates at 100, ..., 700 of 1000 steps, each 2 f_S + f_D instead of 3 f_S
    expected = (993 * 300 + 7 * (200 + 1000)) / (1000 * 3000)
    assert cost.training(so.RigL(total_steps=1000, every=100)) == pytest.approx(expected)


@pytest.fixture(scope="module")
def resnet50() -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    model = ResNet50()
    shapes = {name: layer.shape for name, (layer, _) in so.topology.find_layers(model).items()}
    return forward_flops(model, torch.empty(1, 3, 224, 224)), shapes


def test_resnet50_costs_what_rigl_reports(
    resnet50: tuple[dict[str, int], dict[str, tuple[int, ...]]],
) -> None:
    """The table of its authors' repository, google-research/rigl: 8.2e9 for dense inference, then ERK."""
    dense, shapes = resnet50
    assert sum(dense.values()) == pytest.approx(8.2e9, rel=0.005)
    for sparsity, inference in ((0.8, 0.42), (0.9, 0.24), (0.95, 0.12), (0.965, 0.09)):
        cost = at_densities(dense, so.densities(shapes, sparsity, "erk"))
        assert cost.inference == pytest.approx(inference, abs=0.007)


def test_uniform_with_a_dense_first_layer_costs_what_rigl_reports(
    resnet50: tuple[dict[str, int], dict[str, tuple[int, ...]]],
) -> None:
    """The same table, whose uniform networks have a dense first layer."""
    dense, shapes = resnet50
    inner = {name: shape for name, shape in shapes.items() if name != "conv1.weight"}
    for sparsity, inference in ((0.8, 0.23), (0.9, 0.13), (0.95, 0.08)):
        cost = at_densities(dense, so.densities(inner, sparsity, "uniform"))
        assert cost.inference == pytest.approx(inference, abs=0.007)


def test_the_command_prints_the_paper_s_ratio(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["flops", "imagenet-resnet50", "--sparsity", "0.9", "--method", "static"]) == 0
    printed = capsys.readouterr().out.splitlines()
    dense, sparse = (line.split() for line in printed if line.rstrip().endswith("x"))
    assert dense == ["dense", "25,502,912", "8.18e+09", "1.000x", "2.83e+18", "1.000x"]
    assert sparse[0] == "0.9"
    assert int(sparse[1].replace(",", "")) == round(0.1 * 25_502_912)
    assert float(sparse[3].rstrip("x")) == pytest.approx(0.24, abs=0.005)
    assert sparse[5] == sparse[3]


def test_an_unknown_recipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flops", "nothing"]) == 2
    said = capsys.readouterr().err
    assert "'nothing'" in said
    assert "imagenet-resnet50" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("distribution", ["uniform", "erk"])
def test_a_method_that_begins_denser_is_counted_by_what_it_ends_with(distribution: Any) -> None:
    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(64, 96, bias=False), nn.ReLU(), nn.Linear(96, 8, bias=False))

    dense = network()
    cost = so.analysis.count_flops(dense, so.sparsify(dense, 0.0), torch.empty(1, 64))
    sparse = network()
    end = so.analysis.count_flops(
        sparse, so.sparsify(sparse, 0.9, distribution=distribution), torch.empty(1, 64)
    )
    method = so.GMP(1000, sparsity=0.9, distribution=distribution)
    steps = range(1, 1001)
    assert cost.inference == 1
    assert cost.training(method) == pytest.approx(
        sum(method.cost_at(step, end.inference) for step in steps) / 1000, rel=1e-3
    )
    whole = so.ACDC(1000, sparsity=0.9, scope="global")
    assert cost.training(whole) == pytest.approx(sum(whole.cost_at(step, 0.1) for step in steps) / 1000)


def test_a_weight_that_is_shared_is_sparse_wherever_it_is_used() -> None:
    model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.ReLU(), nn.Linear(32, 32, bias=False))
    model[2].weight = model[0].weight
    topology = so.sparsify(model, 0.9, distribution="uniform")
    cost = so.analysis.count_flops(model, topology, torch.empty(1, 32))
    assert cost.dense == 2 * 2 * 32 * 32
    assert cost.inference == pytest.approx(0.1, abs=1e-3)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(6, 5, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bilinear(x, x[:, :5])


def test_bilinear_layers_are_counted() -> None:
    assert forward_flops(TwoInputs(), torch.empty(3, 6)) == {"bilinear.weight": 2 * 3 * 6 * 5 * 4}
