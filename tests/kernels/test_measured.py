"""Measuring decides group by group, and leaves no trace."""

import copy

import pytest
import torch
from torch import nn

import sparseopt as so
from sparseopt.kernels import measured
from sparseopt.kernels.acceleration import SparseForward
from sparseopt.lab.models.resnet_cifar import CifarResNet


def resnet() -> tuple[nn.Module, so.Topology]:
    torch.manual_seed(0)
    model = CifarResNet(8, 10, width=0.5)
    return model, so.sparsify(model, 0.9)


def test_every_group_is_measured_and_nothing_is_changed() -> None:
    model, topology = resnet()
    before = copy.deepcopy(model.state_dict())
    choices = so.kernels.measure(model, topology, torch.randn(8, 3, 12, 12))
    assert [len(choice.layers) for choice in choices] == [9, 1]
    assert choices[0].layers[0] == "conv"
    assert all(choice.dense > 0 and choice.sparse > 0 for choice in choices)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(("faster", "layers"), [({"conv"}, 9), ({"fc"}, 1), ({"conv", "fc"}, 10)])
def test_only_what_is_faster_is_kept(
    faster: set[str], layers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(
        measured,
        "compare",
        lambda layers, *_: so.kernels.Choice(layers, 2.0, 1.0 if layers[0] in faster else 3.0),
    )
    model, topology = resnet()
    so.kernels.accelerate_where_faster(model, topology, torch.randn(8, 3, 12, 12))
    assert isinstance(model.forward, SparseForward)
    assert f": {layers} layer" in str(model.forward)
    assert ("fc: sparse, 2.0 ms" in caplog.text) == ("fc" in faster)


def test_what_was_chosen_is_told_and_can_be_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "compare", lambda layers, *_: so.kernels.Choice(layers, 2.0, 1.0))
    model, topology = resnet()
    so.kernels.accelerate_where_faster(model, topology, torch.randn(8, 3, 12, 12))
    layers = so.kernels.accelerated_layers(model)
    assert len(layers) == 10
    again, topology = resnet()
    assert so.kernels.accelerated_layers(again) == ()
    so.accelerate(again, topology, layers=layers)
    assert so.kernels.accelerated_layers(again) == layers
    so.accelerate(again, topology, layers=["fc"])
    assert so.kernels.accelerated_layers(again) == ("fc",)
    so.accelerate(again, topology, layers=())
    assert "forward" not in again.__dict__


def test_groups_that_win_alone_and_lose_together_stay_dense(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(
        measured,
        "compare",
        lambda layers, *_: so.kernels.Choice(layers, 2.0, 3.0 if len(layers) == 10 else 1.0),
    )
    model, topology = resnet()
    so.kernels.accelerate_where_faster(model, topology, torch.randn(8, 3, 12, 12))
    assert "dense, 2.0 ms" in caplog.text
    assert "forward" not in model.__dict__


def test_a_model_that_is_faster_dense_stays_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured.Choice, "faster", False)
    model, topology = resnet()
    so.kernels.accelerate_where_faster(model, topology, torch.randn(8, 3, 12, 12))
    assert "forward" not in model.__dict__


def test_groups_in_the_middle_of_a_network_are_measured_on_what_they_see() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 50),
        nn.Tanh(),
        nn.Linear(50, 5),
    )
    choices = so.kernels.measure(model, so.sparsify(model, 0.8), torch.randn(8, 3, 8, 8))
    assert [choice.layers for choice in choices] == [("0",), ("4",), ("6",)]


def test_linear_layers_that_stay_dense_have_ordinary_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured.Choice, "faster", False)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 4))
    topology = so.sparsify(model, 0.9)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, so.Static())
    assert so.kernels.faster_layers(model, topology, torch.randn(8, 30)) == ()
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    assert not optimizer.state


def test_an_example_that_the_kernels_do_not_take_is_run_densely() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    topology = so.sparsify(model, 0.9, distribution="uniform")
    image = torch.randn(3, 8, 8)  # without a batch
    expected = model(image)
    so.kernels.accelerate_where_faster(model, topology, image)
    assert torch.equal(model(image), expected)


def test_a_weight_of_another_shape_is_run_densely() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    topology = so.sparsify(model, 0.9, distribution="uniform", include="0.weight")
    so.accelerate(model, topology)
    x = torch.randn(4, 16)
    model(x)
    last = model[2]
    assert isinstance(last, nn.Linear)
    last.weight.data, last.bias.data = torch.randn(5, 32), torch.randn(5)
    torch.testing.assert_close(model(x), last(torch.relu(model[0](x))))
