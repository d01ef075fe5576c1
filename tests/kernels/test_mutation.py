"""In-place operations do what they say, wherever they stand between layers that run on the kernels."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparseopt as so

Step = Callable[["Convs", Tensor], Tensor]


class Convs(nn.Module):
    """Three convolutions; what is between them is a function."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.norm, self.relu, self.clip = nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.ReLU6(inplace=True)
        self.drop = nn.Dropout(0.5, inplace=True)
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, x)


def method(m: Convs, x: Tensor) -> Tensor:
    y = m.a(x)
    y.relu_()
    return m.b(y)


def function(m: Convs, x: Tensor) -> Tensor:
    y = m.a(x)
    F.relu_(y)
    return m.b(y)


def asked(m: Convs, x: Tensor) -> Tensor:
    y = m.a(x)
    F.relu(y, inplace=True)
    return m.b(y) + y


def positional(m: Convs, x: Tensor) -> Tensor:
    y = m.a(x)
    F.relu(y, True)
    return m.b(y)


def module(m: Convs, x: Tensor) -> Tensor:
    y = m.norm(m.a(x))
    m.relu(y)
    return m.b(y)


def clamped(m: Convs, x: Tensor) -> Tensor:
    y = m.a(x)
    y.clamp_(-0.1, 0.1)
    return m.b(y)


def clipped(m: Convs, x: Tensor) -> Tensor:
    y = m.a(x)
    m.clip(y)
    return m.b(y)


def scaled(m: Convs, x: Tensor) -> Tensor:
    y = m.a(x)
    z = m.b(y)
    y.mul_(3)
    return m.c(y) + z


def summed(m: Convs, x: Tensor) -> Tensor:
    y, z = m.a(x), m.b(x)
    y.add_(z)
    return m.c(y) + y


def summed_by_operator(m: Convs, x: Tensor) -> Tensor:
    y = z = m.a(x)
    z += m.b(x)
    return m.c(y)


def through_a_view(m: Convs, x: Tensor) -> Tensor:
    y = m.a(x)
    flat = y.flatten(1)
    flat.relu_()
    return m.b(y)


def before_a_view(m: Convs, x: Tensor) -> Tensor:
    y = m.a(x)
    part = y[:, :, 1:]
    y.relu_()
    return m.b(part)


def of_the_shortcut(m: Convs, x: Tensor) -> Tensor:
    y = torch.relu(m.a(x))
    z = m.b(y)
    y += z
    return m.c(torch.relu(y))


def after_it_was_read(m: Convs, x: Tensor) -> Tensor:
    y = torch.sigmoid(x)
    z = m.a(y)
    y.mul_(2)
    return m.b(y) + z


def of_the_mean(m: Convs, x: Tensor) -> Tensor:
    y = torch.relu(m.a(x))
    y.mul_(2)
    return y.mean((2, 3))


def dropped(m: Convs, x: Tensor) -> Tensor:
    y = m.a(x)
    m.drop(y)
    return m.b(y)


def twice(m: Convs, x: Tensor) -> Tensor:
    y = m.a(x)
    y.relu_()
    z = m.b(y)
    y.add_(1).relu_()
    return m.c(y) + z


def relu_before_the_sum(m: Convs, x: Tensor) -> Tensor:
    """The padding shortcut is part of a sum that the kernels do not know."""
    y = F.relu(m.a(x))
    return F.relu(m.b(y))[:, :, ::2, ::2] + F.pad(y[:, :, ::2, ::2], (0, 0, 0, 0, 0, 0))


def shortcut_read_twice(m: Convs, x: Tensor) -> Tensor:
    y = F.relu(m.a(x))
    short = y[:, :, ::1, ::1]
    return m.b(y) + short + F.relu(short)


STEPS: list[Step] = [
    *(method, function, asked, positional, module, clamped, clipped, scaled, summed, summed_by_operator),
    *(through_a_view, before_a_view, of_the_shortcut, after_it_was_read, of_the_mean, dropped, twice),
    *(relu_before_the_sum, shortcut_read_twice),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("training", [True, False])
def test_convolutions(step: Step, training: bool) -> None:
    model = Convs(step).train(training)
    topology = so.sparsify(model, 0.6, distribution="uniform")
    dense = copy.deepcopy(model)
    so.accelerate(model, topology)
    assert so.kernels.accelerated_layers(model)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(3, 4, 6, 6, generator=generator)
    results = []
    for each in (model, dense):
        if training:
            torch.manual_seed(1)
            results.append(each(x.clone()))
        else:
            with torch.no_grad():
                results.append(each(x.clone()))
    torch.testing.assert_close(results[0], results[1])
    if not training:
        engine = so.compile_inference(dense, topology)
        torch.testing.assert_close(engine(x.clone()), results[1])


@pytest.mark.parametrize(
    "step", [method, module, summed_by_operator, relu_before_the_sum, shortcut_read_twice]
)
def test_gradients(step: Step) -> None:
    model = Convs(step)
    topology = so.sparsify(model, 0.6, distribution="uniform")
    dense = copy.deepcopy(model)
    so.accelerate(model, topology)
    x = torch.randn(3, 4, 6, 6)
    for each in (model, dense):
        each(x).square().sum().backward()
    for (name, mine), its in zip(model.named_parameters(), dense.parameters(), strict=True):
        assert (mine.grad is None) == (its.grad is None), name
        if mine.grad is not None and its.grad is not None:
            mask = topology.masks.get(name, torch.tensor(True))
            torch.testing.assert_close(mine.grad * mask, its.grad * mask, rtol=1e-4, atol=1e-5, msg=name)


def test_the_input_is_written_to() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            x.relu_()
            return self.b(x) + y

    model = Writing()
    topology = so.sparsify(model, 0.6, distribution="uniform")
    dense = copy.deepcopy(model)
    so.accelerate(model, topology)
    mine = torch.randn(4, 8)
    its = mine.clone()
    with torch.no_grad():
        torch.testing.assert_close(model(mine), dense(its))
    assert torch.equal(mine, its)
    assert bool((mine >= 0).all())


def test_a_chain_does_not_read_what_is_written_later() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            y = torch.tanh(x)
            hidden = torch.relu(self.a(y))
            y.mul_(5)
            return self.b(hidden) + self.c(y)

    model = Late()
    topology = so.sparsify(model, 0.6, distribution="uniform")
    dense = copy.deepcopy(model)
    so.accelerate(model, topology)
    x = torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(model(x), dense(x))
