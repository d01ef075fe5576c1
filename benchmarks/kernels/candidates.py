"""What is timed: whole training steps and whole forward passes, dense in every way torch offers, and sparse."""

import copy
from collections.abc import Callable, Collection
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sparseopt as so
from sparseopt.lab.models import CifarResNet, ResNet50

Step = Callable[[], object]


class Network(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    exclude: tuple[str, ...] = ()  # what stays dense


NETWORKS = {
    "resnet20": Network(lambda: CifarResNet(20, 100, shortcut="padding"), (3, 32, 32)),
    "resnet20-authors": Network(lambda: CifarResNet(20, 100), (3, 32, 32), ("*.shortcut.*",)),
    "resnet20-projection": Network(lambda: CifarResNet(20, 100, shortcut="projection"), (3, 32, 32)),
    "resnet20-x4": Network(lambda: CifarResNet(20, 100, width=4, shortcut="padding"), (3, 32, 32)),
    "resnet50": Network(lambda: ResNet50(1000), (3, 224, 224)),
    "mlp": Network(lambda: mlp(norm=False), (784,)),
    "mlp-batchnorm": Network(lambda: mlp(norm=True), (784,)),
}


def mlp(*, norm: bool) -> nn.Module:
    """784-1024-1024-10, with batch norm before every ReLU or without."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((784, 1024), (1024, 1024)):
        layers += [nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1024, 10))


def make(network: str) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[network].make()


def images(network: str, batch: int) -> Tensor:
    return torch.randn(batch, *NETWORKS[network].shape, generator=torch.Generator().manual_seed(0))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True)


def training_step(forward: Callable[..., Tensor], optimizer: torch.optim.Optimizer, x: Tensor) -> Step:
    """Forward, backward and optimizer, on a batch that stays the same."""
    labels = torch.zeros(len(x), dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(forward(x), labels).backward()
        optimizer.step()

    return step


def dense_variants(
    network: str, x: Tensor, ways: Collection[str]
) -> dict[str, tuple[nn.Module, Callable[..., Tensor], Tensor]]:
    """The dense network in both memory formats, "eager", "compiled" or both: model, what to call, what with."""
    variants = {}
    for layout in ("NCHW", "channels_last") if x.dim() == 4 else ("",):
        model, data = make(network), x
        if layout == "channels_last":
            model = model.to(memory_format=torch.channels_last)  # pyright: ignore
            data = x.contiguous(memory_format=torch.channels_last)
        for way in ways:
            own = copy.deepcopy(model)
            forward = torch.compile(own) if way == "compiled" else own
            variants[" ".join(("dense", layout, way) if layout else ("dense", way))] = (own, forward, data)
    return variants


def dense_training(network: str, x: Tensor, ways: Collection[str]) -> dict[str, Step]:
    return {
        name: training_step(forward, sgd(model), data)
        for name, (model, forward, data) in dense_variants(network, x, ways).items()
    }


def sparse_training(
    network: str,
    x: Tensor,
    sparsity: float,
    distribution: str,
    *,
    wrapped: bool,
    storage: str = "dense",
    activations: torch.dtype = torch.float32,
    method: so.Method | None = None,
    break_even: float = 0.5,
) -> Step:
    """Accelerated training; `wrapped` in SparseOpt, or with the plain optimizer, which keeps the zeros as well."""
    model = make(network)
    topology = so.sparsify(
        model,
        sparsity,
        distribution=distribution,  # pyright: ignore[reportArgumentType]
        storage=storage,  # pyright: ignore[reportArgumentType]
        exclude=NETWORKS[network].exclude,
    )
    optimizer = sgd(model)
    if wrapped:
        optimizer = so.SparseOpt(optimizer, topology, method or so.Static())
    model = so.accelerate(model, topology, activations=activations, break_even=break_even)
    return training_step(model, optimizer, x)


def settled(model: nn.Module, x: Tensor) -> nn.Module:
    """A model in evaluation mode with running statistics of its own."""
    with torch.no_grad():
        model(x)
    return model.eval()


def sparse_inference(network: str, x: Tensor, sparsity: float, distribution: str) -> Step:
    model = make(network)
    exclude = NETWORKS[network].exclude
    topology = so.sparsify(model, sparsity, distribution=distribution, exclude=exclude)
    engine = so.compile_inference(settled(model, images(network, 16)), topology)
    return lambda: engine(x)
