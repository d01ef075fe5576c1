import pytest
import torch
from torch import nn

import sparseopt.topology
from sparseopt.lab.models import CifarResNet, ResNet50, mlp


def sparsifiable(model: nn.Module) -> int:
    return sum(layer.size for layer, _ in sparseopt.topology.find_layers(model).values())


def test_resnet20_on_cifar100_has_the_papers_weights() -> None:
    without = 276_656 - 16 * 32 - 32 * 64
    assert sparsifiable(CifarResNet(20, 100, shortcut="padding")) == without
    assert sparsifiable(CifarResNet(20, 100, shortcut="projection")) == 276_656
    assert sparsifiable(CifarResNet(20, 100)) == without + 23_040  # two 3 x 3 convolutions


def test_cifar_networks_start_as_the_authors_do() -> None:
    """Variance 2 / fan_in in convolutions and classifier."""
    torch.manual_seed(0)
    model = CifarResNet(20, 100)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and module.weight.numel() > 4000:
            variance = float(module.weight.detach().var()) * module.weight[0].numel()
            assert variance == pytest.approx(2, rel=0.1)


def test_the_authors_shortcut_is_a_convolution_with_batch_norm() -> None:
    shortcut = CifarResNet(20, 100).get_submodule("stages.1.0.shortcut")
    convolution, norm = shortcut.children()
    assert isinstance(convolution, nn.Conv2d)
    assert (convolution.kernel_size, convolution.stride, convolution.padding) == ((3, 3), (2, 2), (1, 1))
    assert isinstance(norm, nn.BatchNorm2d)
    assert convolution.bias is None


def test_resnet50_on_imagenet_has_the_papers_weights() -> None:
    with torch.device("meta"):
        model = ResNet50()
    assert sum(p.numel() for p in model.parameters() if p.dim() > 1) == 25_502_912
    assert sum(p.numel() for p in model.parameters()) == 25_557_032  # with BatchNorm and the last bias


@pytest.mark.parametrize(("depth", "convolutions"), [(20, 19), (32, 31), (56, 55)])
def test_depth_counts_convolutions_and_the_last_layer(depth: int, convolutions: int) -> None:
    model = CifarResNet(depth, 10, shortcut="padding")
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == convolutions


def test_width_multiplies_every_channel() -> None:
    narrow, wide = CifarResNet(20, 10), CifarResNet(20, 10, width=2)
    for a, b in zip(narrow.modules(), wide.modules(), strict=True):
        if isinstance(a, nn.BatchNorm2d):
            assert isinstance(b, nn.BatchNorm2d)
            assert b.num_features == 2 * a.num_features


@pytest.mark.parametrize("shortcut", ["convolution", "projection", "padding"])
def test_cifar_networks_end_in_one_score_a_class(shortcut: str) -> None:
    model = CifarResNet(20, 7, width=0.25, shortcut=shortcut)  # pyright: ignore[reportArgumentType]
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)


def test_padding_shortcut_keeps_every_second_pixel() -> None:
    block = CifarResNet(8, 10, shortcut="padding").stages[1][0]  # pyright: ignore[reportIndexIssue]
    x = torch.randn(1, 16, 4, 4)
    y = block.shortcut(x)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    assert y.shape == (1, 32, 2, 2)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert y[:, :8].abs().sum() == y[:, 24:].abs().sum() == 0


def test_mlp_normalises_every_hidden_layer() -> None:
    model = mlp((1, 28, 28), 10, (64, 32))
    assert [type(module).__name__ for module in model] == (
        ["Flatten"] + 2 * ["Linear", "BatchNorm1d", "ReLU"] + ["Linear"]
    )
    assert sparsifiable(model) == 784 * 64 + 64 * 32 + 32 * 10


def test_a_depth_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="depth must be 6n"):
        CifarResNet(21, 10)
