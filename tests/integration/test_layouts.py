"""How a batch is cut and how tensors lie in memory changes nothing: gradient accumulation and channels_last."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so

STEPS = 30
IMAGES = 8

METHODS = [so.SET(total_steps=STEPS, every=4), so.RigL(total_steps=STEPS, every=4)]


def build(method: so.Method) -> tuple[nn.Module, so.SparseOpt]:
    """A small convolutional network in float64, normalised image by image, so that a batch may be cut."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8), nn.ReLU()),
        *(nn.Conv2d(8, 12, 3, stride=2, groups=2, bias=False), nn.GroupNorm(2, 12), nn.ReLU()),
        *(nn.ConvTranspose2d(12, 6, 3, groups=3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(6, 4),
    ).double()
    topology = so.sparsify(model, 0.7)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    return model, so.SparseOpt(sgd, topology, method)


def batch(step: int) -> tuple[Tensor, Tensor]:
    draw = so.topology.generator(0, "batch", step)
    images = torch.randn(IMAGES, 3, 8, 8, generator=draw, dtype=torch.float64)
    return images, torch.randint(4, (IMAGES,), generator=draw)


def train(
    model: nn.Module, optimizer: so.SparseOpt, parts: int = 1, layout: torch.memory_format | None = None
) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        images, labels = batch(step)
        if layout is not None:
            images = images.to(memory_format=layout)
        for some, theirs in zip(images.chunk(parts), labels.chunk(parts), strict=True):
            (nn.functional.cross_entropy(model(some), theirs) / parts).backward()
        optimizer.step()


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("parts", [2, 8])
def test_accumulated_gradients_are_one_step(
    method: so.Method,
    parts: int,
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
    assert_same_topology: Callable[[so.Topology, so.Topology], None],
) -> None:
    """The schedule counts optimizer steps, and growth reads the gradient of the whole batch."""
    whole, reference = build(method)
    model, optimizer = build(method)
    train(whole, reference)
    train(model, optimizer, parts)
    assert optimizer.steps == reference.steps == STEPS
    assert_exactly_sparse(optimizer)
    assert_same_topology(reference.topology, optimizer.topology)
    torch.testing.assert_close(model.state_dict(), whole.state_dict(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_channels_last_is_the_same_training(
    method: so.Method,
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
    assert_same_topology: Callable[[so.Topology, so.Topology], None],
) -> None:
    usual, reference = build(method)
    model, optimizer = build(method)
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    train(usual, reference)
    train(model, optimizer, layout=torch.channels_last)
    first = model[0].weight  # pyright: ignore[reportIndexIssue]
    assert first.is_contiguous(memory_format=torch.channels_last)
    assert_exactly_sparse(optimizer)
    assert_same_topology(reference.topology, optimizer.topology)
    torch.testing.assert_close(model.state_dict(), usual.state_dict(), rtol=1e-9, atol=1e-12)


def test_a_checkpoint_crosses_layouts(
    assert_same_topology: Callable[[so.Topology, so.Topology], None],
) -> None:
    """Saved from channels_last, loaded into the usual layout: the same masks, then the same steps."""
    method = METHODS[1]
    model, optimizer = build(method)
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    train(model, optimizer)
    other, resumed = build(method)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch would share the tensors
    assert_same_topology(optimizer.topology, resumed.topology)
    train(model, optimizer)
    train(other, resumed)
    assert_same_topology(optimizer.topology, resumed.topology)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=1e-9, atol=1e-12)
