"""What tracing finds in whole networks, and that it computes what the network says."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparseopt as so
from sparseopt.kernels.acceleration import SparseForward

Check = Callable[..., None]
OLD, TRACING = torch.__version__ < "2.7", "torch 2.6 cannot trace functions of the size of a tensor"


class Block(nn.Module):
    """A residual block with one of three shortcuts."""

    def __init__(self, inputs: int, channels: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.stride, self.extra, self.kind = stride, channels - inputs, shortcut
        if shortcut == "projection":
            self.project = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride), nn.BatchNorm2d(channels))

    def shortcut(self, x: Tensor) -> Tensor:
        if self.kind == "projection":
            return self.project(x)
        if self.kind == "padding":
            return F.pad(
                x[:, :, :: self.stride, :: self.stride],
                (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2),
            )
        return x

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return self.relu(y)


class Head(nn.Module):
    def __init__(self, pool: str) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        if self.pool == "mean":
            return x.mean((2, 3))
        if self.pool == "adaptive":
            return F.adaptive_avg_pool2d(x, 1).flatten(1)
        return F.max_pool2d(x, 2).flatten(1)


def network(shortcut: str, pool: str = "mean") -> nn.Module:
    torch.manual_seed(3)
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    stride, channels = (1, 4) if shortcut == "identity" else (2, 7)
    blocks = (
        Block(4, 4, 1, "identity"),
        Block(4, channels, stride, shortcut),
        Block(channels, channels, 1, "identity"),
    )
    features = channels * (16 if stride == 1 else 4) if pool == "max" else channels
    return nn.Sequential(stem, *blocks, Head(pool), nn.Linear(features, 5))


@pytest.mark.parametrize("shortcut", ["identity", "padding", "projection"])
@pytest.mark.parametrize("pool", ["mean", "adaptive", "max"])
def test_residual_networks(check: Check, shortcut: str, pool: str) -> None:
    model = network(shortcut, pool)
    topology = so.sparsify(model, 0.7)
    check(model, topology, torch.randn(5, 3, 16, 16))


def pieces(model: nn.Module) -> int:
    assert isinstance(model.forward, SparseForward)
    return model.forward.pieces()


def test_a_residual_network_is_one_region_from_its_pooling_to_its_classifier() -> None:
    model = network("padding")
    so.accelerate(model, so.sparsify(model, 0.7, distribution="uniform"))
    assert pieces(model) == 3  # the stem before max pooling, all blocks, the classifier


def test_values_that_leave_a_region_and_come_back(check: Check) -> None:
    """Squeeze and excitation: the region's mean decides, densely, what the next region reads."""

    class Excite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
            self.gate, self.after = nn.Linear(6, 6), nn.Conv2d(6, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.norm(self.before(x)))
            gate = torch.sigmoid(self.gate(x.mean((2, 3))))
            return self.after(x * gate[:, :, None, None])

    torch.manual_seed(0)
    model = Excite()
    check(model, so.sparsify(model, 0.5), torch.randn(5, 3, 9, 9))


def test_several_readers_of_one_activation(check: Check) -> None:
    """Two convolutions and two sums read x; one of them without batch norm, one sum without ReLU."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
            self.a, self.b, self.c = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.norm(self.stem(x)))
            left = self.a(x) + x
            right = torch.relu(x + self.b(x))
            return torch.cat([self.c(left), right, left], 1)

    torch.manual_seed(0)
    model = Branches()
    check(model, so.sparsify(model, 0.5), torch.randn(5, 3, 6, 6))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_layers_the_kernels_do_not_know_run_densely(check: Check) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, groups=2),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(8, 8, (3, 2), padding="same"),
        nn.BatchNorm2d(8),
        nn.Tanh(),
        nn.Conv2d(8, 8, 3, stride=3),
        nn.Conv2d(8, 4, 1),
    )
    check(model, so.sparsify(model, 0.5), torch.randn(5, 4, 9, 9))


def test_padding_by_name_runs_on_the_kernels(check: Check) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, (5, 1), padding="same"), nn.ReLU(), nn.Conv2d(8, 8, 3, padding="valid")),
    )
    topology = so.sparsify(model, 0.6)
    check(model, topology, torch.randn(5, 3, 9, 11))
    assert all(layer.reason is None for layer in so.compile_inference(model.eval(), topology).layers)


def test_a_module_called_twice(check: Check) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.last = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.shared(torch.relu(self.shared(x)))))

    torch.manual_seed(0)
    model = Twice()
    check(model, so.sparsify(model, 0.5), torch.randn(5, 3, 6, 6))


def test_hooks_are_called() -> None:
    model = network("identity")
    seen = []
    model[1].conv2.register_forward_hook(lambda *_: seen.append(1))  # pyright: ignore
    so.accelerate(model, so.sparsify(model, 0.7))
    model(torch.randn(5, 3, 16, 16))
    assert seen == [1]


class Spread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 6), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        return self.c(torch.relu(self.b(x) + x))


def test_sums_that_torch_broadcasts_run_densely(check: Check) -> None:
    model = Spread()
    topology = so.sparsify(model, 0.5, distribution="uniform")
    check(model, topology, torch.randn(5, 3, 6, 6))
    x = torch.randn(5, 3, 6, 6)
    expected = model(x).detach()
    torch.testing.assert_close(so.compile_inference(model, topology)(x), expected, rtol=1e-4, atol=1e-5)


def test_images_without_a_batch_and_batches_without_an_image() -> None:
    model = network("identity")
    dense = copy.deepcopy(model)
    so.accelerate(model, so.sparsify(model, 0.7))
    convs, its = model[0][0], dense[0][0]  # pyright: ignore
    assert convs(torch.randn(3, 16, 16)).shape == its(torch.randn(3, 16, 16)).shape
    assert model.eval()(torch.randn(0, 3, 16, 16)).shape == (0, 5)


class Pooled(nn.Module):
    """Average pooling between convolutions, as a module or a function, and of the shortcut."""

    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.b, self.project = nn.Conv2d(6, 6, 3, 2, 1), nn.Conv2d(6, 6, 1)
        self.norm_b, self.fc, self.pool = nn.BatchNorm2d(6), nn.Linear(6, 4), pool

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.a(x)))
        x = torch.relu(self.norm_b(self.b(x)) + self.project(self.pool(x)))
        return self.fc(x.mean((2, 3)))


@pytest.mark.parametrize(
    ("pool", "fused"),
    [
        (nn.AvgPool2d(2), True),
        (nn.AvgPool2d(3, 2, 1), True),
        (nn.AvgPool2d(3, 2, 1, count_include_pad=False), False),
        (lambda x: F.avg_pool2d(x, 2), True),
        (lambda x: F.avg_pool2d(x, kernel_size=(3, 3), stride=2, padding=1), True),
        pytest.param(
            lambda x: F.avg_pool2d(x, x.shape[-1] // 4), False, marks=pytest.mark.skipif(OLD, reason=TRACING)
        ),
    ],
)
def test_average_pooling(check: Check, pool: Callable[[Tensor], Tensor], fused: bool) -> None:
    torch.manual_seed(0)
    model = Pooled(pool)
    topology = so.sparsify(model, 0.5, distribution="uniform")
    x = torch.randn(5, 3, 8, 8)
    check(model, topology, x)
    engine = so.compile_inference(model, topology)
    assert torch.allclose(engine(x), copy.deepcopy(model).eval()(x), atol=1e-6)
    so.accelerate(model, topology)
    assert pieces(model) == (2 if fused else 3)  # the classifier is one
    assert len(so.kernels.accelerated_layers(model)) == 4
