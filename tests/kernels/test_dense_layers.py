"""Layers without zeros among sparse ones, for which the kernels have tiles of their own, against float64."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparseopt as so
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.conv_operators import Window
from sparseopt.kernels.native.memory import zeros
from sparseopt.kernels.native.operators import Operators

Check = Callable[..., None]


class Net(nn.Module):
    """A layer behind a stem. Its input is read by nothing else, by another convolution, or by the shortcut around the layer."""

    def __init__(self, around: str, inputs: int, outputs: int, **options: Any) -> None:
        super().__init__()
        self.around, self.stride = around, options.get("stride", 1)
        self.missing = outputs - inputs
        self.stem, self.norm_stem = nn.Conv2d(3, inputs, 3, padding=1), nn.BatchNorm2d(inputs)
        self.layer, self.norm = nn.Conv2d(inputs, outputs, **options), nn.BatchNorm2d(outputs)
        self.beside = nn.Conv2d(inputs, outputs, 1, self.stride)
        self.last, self.norm_last = nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm_stem(self.stem(x)))
        y = self.norm(self.layer(x))
        if self.around == "beside":
            return F.relu(y + self.beside(x))
        y = self.norm_last(self.last(F.relu(y)))
        if self.around == "shortcut":
            y = y + F.pad(
                x[:, :, :: self.stride, :: self.stride],
                (0, 0, 0, 0, self.missing // 2, -(-self.missing // 2)),
            )
        return F.relu(y)


# Channels in and out, the layer, height and width, samples.
CASES = {
    "3x3": (7, 10, {"kernel_size": 3, "padding": 1}, (9, 7), 19),
    "3x3 stride 2": (5, 8, {"kernel_size": 3, "stride": 2, "padding": 1}, (12, 13), 9),
    "3x3 stride 2, wider than a tile": (4, 4, {"kernel_size": 3, "stride": 2, "padding": 1}, (5, 37), 3),
    "1x1": (3, 11, {"kernel_size": 1}, (6, 5), 33),
    "1x1 stride 2": (8, 9, {"kernel_size": 1, "stride": 2}, (7, 10), 8),
    "5x5": (2, 3, {"kernel_size": 5, "padding": 2}, (7, 6), 1),
    "5x5 stride 2": (6, 7, {"kernel_size": 5, "stride": 2, "padding": 2}, (8, 11), 17),
    "a pixel": (9, 13, {"kernel_size": 3, "padding": 1}, (1, 1), 21),
}


def net(
    around: str, inputs: int, outputs: int, options: dict[str, Any], dense: str = "layer.weight"
) -> tuple[Net, so.Topology]:
    torch.manual_seed(inputs)
    model = Net(around, inputs, outputs, **options)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
    return model, so.sparsify(model, 0.5, distribution="uniform", exclude=dense)


@contextmanager
def dense_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Of which passes the kernels were told that a layer has no zeros."""
    found: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("conv_forward", "conv_backward"):
            original = getattr(Operators, name)

            def call(*args: Any, name: str = name, original: Any = original, **named: Any) -> None:
                if named["dense"]:
                    found.append(name)
                original(*args, **named)

            patch.setattr(Operators, name, call)
        yield found


@pytest.mark.parametrize("around", ["alone", "beside", "shortcut"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_float64(
    check: Check, case: str, around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, outputs, options, size, samples = CASES[case]
    model, topology = net(around, inputs, outputs, options)
    with dense_calls(monkeypatch) as found:
        check(model, topology, *torch.randn(8, samples, 3, *size))
    assert found == ["conv_forward", "conv_backward"]


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 3, "padding": 2},
        {"kernel_size": (3, 1), "padding": (1, 0)},
        {"kernel_size": (2, 3), "stride": 2, "padding": (1, 2)},
    ],
    ids=str,
)
def test_any_padding(check: Check, options: dict[str, Any]) -> None:
    model, topology = net("alone", 5, 6, options)
    check(model, topology, *torch.randn(8, 11, 3, 8, 9))


def test_the_first_layer_of_all(check: Check) -> None:
    """It reads what comes into the region, whose gradient may be wanted or not."""
    model, topology = net("alone", 5, 6, {"kernel_size": 3, "padding": 1}, dense="stem.weight")
    x = torch.randn(11, 3, 8, 9)
    check(model, topology, x, *torch.randn(8, *x.shape))
    so.accelerate(model, topology, break_even=0.0)
    gradients: list[Tensor] = []
    for wanted in (True, False):
        model.zero_grad()
        model(x.clone().requires_grad_(wanted)).square().sum().backward()
        assert model.stem.weight.grad is not None
        gradients.append(model.stem.weight.grad.clone())
    assert torch.equal(*gradients)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_steps_repeat_themselves_with_any_number_of_threads(check: Check, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model, topology = net("shortcut", 5, 8, {"kernel_size": 3, "stride": 2, "padding": 1})
        x = torch.randn(4 * operators().lanes() + 1, 3, 8, 9)
        check(model, topology, x, *torch.randn(8, *x.shape))
        so.accelerate(model, topology, break_even=0.0)
        steps = []
        for _ in range(4):  # the first ones are written down, the others made from that
            model.zero_grad()
            model(x).square().sum().backward()
            steps.append(
                [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
            )
        for step in steps[1:]:
            assert all(torch.equal(a, b) for a, b in zip(step, steps[0], strict=True))
    finally:
        torch.set_num_threads(before)


def test_a_step_that_wants_the_gradient_of_all_weights() -> None:
    """A mask without zeros: what RigL reads of such a layer is the gradient it has anyway."""
    torch.manual_seed(0)
    model = Net("shortcut", 5, 8, kernel_size=3, stride=2, padding=1)
    topology = so.sparsify(model, 0.5, distribution={"layer.weight": 0.0})
    exact = copy.deepcopy(model).double()
    so.accelerate(model, topology, break_even=0.0)
    x = torch.randn(19, 3, 9, 7)
    found: list[Tensor] = []
    for wanted in (False, True):
        topology.dense_grads.wanted = wanted
        model.zero_grad()
        model(x).sum().backward()
        assert model.layer.weight.grad is not None
        found.append(model.layer.weight.grad.clone())
    exact(x.double()).sum().backward()
    assert exact.layer.weight.grad is not None
    for each in found:
        error = (each.double() - exact.layer.weight.grad).norm()
        assert float(error) <= 1e-5 * float(exact.layer.weight.grad.norm())


def test_a_dense_layer_has_all_its_weights() -> None:
    lanes = operators().lanes()
    x, z = zeros(1, 6, 2, 6, lanes), zeros(1, 4, 3, 4, lanes)
    none = torch.zeros(99, dtype=torch.int32)

    def forward(weights: int) -> None:
        lists = (zeros(weights), none[:4], none[:weights])
        source = (None, None, None, 0, None, 1, 0, False)
        operators().conv_forward(x, 1, True, *source, *lists, 1, 2, 1, z, zeros(3), None, dense=True)

    def backward(weights: int, window: Window) -> None:
        read = (z, 0, z, zeros(4, 3), x, 1, None, False)
        lists = (zeros(weights), none[:3], none[:weights], none[:weights])
        nowhere = (None, 0, False, None, 0, 0, False, None, None)
        operators().conv_backward(
            *read, *nowhere, *lists, 1, 2, 1, 1, weight_gradient=zeros(weights), sums=None, dense=window
        )

    forward(54)
    backward(54, Window(3, 3, 1, 1))
    wrong = (
        lambda: forward(53),
        lambda: backward(53, Window(3, 3, 1, 1)),
        lambda: backward(54, Window(3, 1, 1, 0)),
        lambda: backward(54, Window(3, 3, 0, 1)),
        lambda: backward(54, Window(3, 3, 1, -1)),
    )
    for each in wrong:
        with pytest.raises(RuntimeError, match="fit one another"):
            each()
