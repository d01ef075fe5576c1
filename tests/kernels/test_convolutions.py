"""One convolution with its batch norm and ReLU, against float64, for every shape the kernels promise."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so

Check = Callable[..., None]

SHAPES = {
    "3x3": (12, 16, {"kernel_size": 3, "padding": 1}, (8, 8)),
    "3x3 stride 2": (12, 16, {"kernel_size": 3, "stride": 2, "padding": 1}, (8, 8)),
    "3x3 stride 2, odd image": (12, 16, {"kernel_size": 3, "stride": 2, "padding": 1}, (7, 9)),
    "3x3 without padding": (12, 16, {"kernel_size": 3}, (6, 7)),
    "3x3 stride 2 without padding": (12, 16, {"kernel_size": 3, "stride": 2}, (8, 7)),
    "1x1": (12, 16, {"kernel_size": 1}, (5, 6)),
    "1x1 stride 2": (12, 16, {"kernel_size": 1, "stride": 2}, (6, 5)),
    "7x7 stride 2": (5, 6, {"kernel_size": 7, "stride": 2, "padding": 3}, (12, 11)),
    "3x1, padding of one axis": (12, 16, {"kernel_size": (3, 1), "padding": (1, 0)}, (5, 6)),
}


def conv_net(shape: str, *, bias: bool = False, norm: bool = True) -> tuple[nn.Module, tuple[int, ...]]:
    """Two convolutions, so that the second one's backward pass runs through the first one's batch norm and ReLU."""
    inputs, outputs, options, size = SHAPES[shape]
    torch.manual_seed(len(shape))
    first = nn.Conv2d(3, inputs, 3, padding=1, bias=bias)
    second = nn.Conv2d(inputs, outputs, bias=bias, **options)  # pyright: ignore[reportArgumentType]
    norms = [nn.BatchNorm2d(n) if norm else nn.Identity() for n in (inputs, outputs)]
    model = nn.Sequential(first, norms[0], nn.ReLU(), second, norms[1], nn.ReLU())
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
    return model, (3, *size)


@pytest.mark.parametrize(
    ("batch", "sparsity"), [(1, 0.0), (1, 0.99), (7, 0.9), (16, 0.0), (33, 0.5), (128, 0.9)]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_the_masked_dense_layer(
    check: Check, shape: str, batch: int, sparsity: float
) -> None:
    model, size = conv_net(shape)
    topology = so.sparsify(model, sparsity, distribution="uniform")
    check(model, topology, *torch.randn(5, batch, *size))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_bias_and_batch_norm_in_both_modes(check: Check, bias: bool, norm: bool, training: bool) -> None:
    model, size = conv_net("3x3", bias=bias, norm=norm)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn(module.num_features)
            module.running_var = torch.rand(module.num_features) + 0.5
    model.train(training)
    topology = so.sparsify(model, 0.8)
    check(model, topology, torch.randn(9, *size))


@pytest.mark.parametrize(
    "options",
    [{"momentum": None}, {"momentum": 0.3, "eps": 1e-2}, {"affine": False}, {"track_running_stats": False}],
    ids=str,
)
@pytest.mark.parametrize("training", [False, True])
def test_every_kind_of_batch_norm(check: Check, options: dict[str, object], training: bool) -> None:
    model, size = conv_net("3x3")
    for index, channels in ((1, 12), (4, 16)):
        model[index] = nn.BatchNorm2d(channels, **options)  # pyright: ignore
    model.train(training)
    topology = so.sparsify(model, 0.7)
    check(model, topology, torch.randn(9, *size))


def test_neurons_without_inputs(check: Check) -> None:
    model, size = conv_net("3x3")
    masks = {name: torch.rand(p.shape) < 0.3 for name, p in model.named_parameters() if p.dim() == 4}
    for mask in masks.values():
        mask[1] = False
        mask[:, 2] = False
    topology = so.sparsify(model, 0.7, masks=masks)
    check(model, topology, torch.randn(9, *size))


def test_variance_of_outputs_far_from_zero(check: Check) -> None:
    """A one-pass variance in single precision has no correct digit here: the mean is 3,000 times the deviation."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3))
    with torch.no_grad():
        model[0].weight.abs_()  # pyright: ignore
    topology = so.sparsify(model, 0.5)
    images = torch.randn(16, 2, 8, 8) / 3 + 1000
    check(model, topology, images)


def test_masks_that_move(check: Check) -> None:
    model, size = conv_net("3x3 stride 2")
    topology = so.sparsify(model, 0.8)
    so.accelerate(model, topology)
    x = torch.randn(9, *size)
    model(x)
    moved = {name: mask.flatten().roll(1).view_as(mask) for name, mask in topology.masks.items()}
    topology.replace(moved)
    with torch.no_grad():
        for name, mask in moved.items():
            topology.parameters[name].copy_(torch.randn(mask.shape) * mask)
    so.kernels.restore(model)
    dense = model(x)
    so.accelerate(model, topology)
    assert torch.allclose(model(x), dense, atol=1e-5)
    check(model, topology, x)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.transpose(2, 3),
        lambda x: x[::2],
        lambda x: x[:1].expand(4, -1, -1, -1),
    ],
    ids=["channels_last", "transposed", "strided", "expanded"],
)
def test_any_memory_format(change: Callable[[Tensor], Tensor]) -> None:
    model, size = conv_net("3x3")
    topology = so.sparsify(model, 0.8)
    x = change(torch.randn(8, *size))
    dense = model(x)
    so.accelerate(model, topology)
    assert torch.allclose(model(x), dense, atol=1e-5)


def test_what_the_kernels_do_not_take_goes_the_dense_way() -> None:
    model, size = conv_net("3x3")
    dense = copy.deepcopy(model)
    so.accelerate(model, so.sparsify(model, 0.8))
    assert model(torch.randn(0, *size)).shape == dense(torch.randn(0, *size)).shape  # an empty batch
    for each in (model, dense):
        with pytest.raises(ValueError, match="4D"):  # batch norm's, of an image that is no batch
            each(torch.randn(size))


def test_one_value_per_channel_has_no_variance() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))
    so.accelerate(model, so.sparsify(model, 0.5, distribution="uniform"))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.randn(1, 2, 1, 1))
