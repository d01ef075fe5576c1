"""What the tests of the kernels share: a float64 reference, and the error torch's own float32 makes against it."""

import copy
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so
from sparseopt.kernels.accelerated import SparseForward
from sparseopt.kernels.native.build import BuildError, operators

FLOOR = 5e-7  # eight roundings of float32; torch's error may happen to be smaller
ULP = 2.0**-23  # the last digit of float32


@pytest.fixture(scope="session", autouse=True)
def kernels() -> None:
    try:
        operators()
    except BuildError as reason:
        pytest.skip(str(reason))


@dataclass
class Results:
    """What a model gives for an input and a gradient of its output."""

    values: dict[str, Tensor]

    def error(self, exact: "Results") -> float:
        """Largest error of a tensor, relative to its norm; of a gradient, relative to the largest gradient's norm.

        Batch norm makes some gradients cancel to nearly nothing: what is left of them is rounding in any arithmetic.
        """
        norms = {name: float(true.double().norm()) for name, true in exact.values.items()}
        largest = max(norm for name, norm in norms.items() if name.startswith("grad "))
        return max(
            float((self.values[name].double() - true.double()).norm())
            / (largest if name.startswith("grad ") else max(norms[name], 1e-12))
            for name, true in exact.values.items()
        )

    def errors(self, exact: "Results") -> dict[str, float]:
        """The error of every tensor, relative to its own norm.

        Behind batch norm some gradients are zero, all but for epsilon: those of a neuron's only weight, of anything that shifts
        a constant. Any arithmetic returns what is left of its rounding errors there. Entries that float64 finds to be zero are
        left out, and what is then a single number counts relative to the largest gradient's norm.
        """
        gradients = [true.double().norm() for name, true in exact.values.items() if name.startswith("grad ")]
        largest = float(max(gradients))
        errors = {}
        for name, value in exact.values.items():
            true, found = value.double().flatten(), self.values[name].double().flatten()
            norm = float(true.norm())
            if name.startswith("grad "):
                known = true.abs() > 1e-9 * largest
                true, found = true[known], found[known]
                norm = largest if len(true) < 2 else norm
            errors[name] = float((found - true).norm()) / max(norm, 1e-12)
        return errors


def results(model: nn.Module, topology: so.Topology, x: Tensor, seed: int = 1) -> Results:
    """Output, gradients (at active weights) and buffers of one forward and backward pass."""
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = model(x)
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
    y.backward(gradient)
    assert x.grad is not None
    values = {"output": y.detach(), "input": x.grad}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        mask = topology.masks.get(name)
        values[f"grad {name}"] = parameter.grad if mask is None else parameter.grad * mask
    values |= {name: buffer.clone() for name, buffer in model.named_buffers()}
    return Results(values)


def on_kernels(model: nn.Module, topology: so.Topology) -> nn.Module:
    """Accelerate however dense the model is, and see that the kernels run."""
    model.forward = SparseForward(model, topology, lambda _: True)
    return model


@pytest.fixture
def check() -> Callable[..., None]:
    """Compare an accelerated copy of a sparse model with float64, allowing twice the error of torch's float32.

    The errors are averaged over the inputs given: that of a single input is a matter of luck.
    """

    def check(model: nn.Module, topology: so.Topology, *inputs: Tensor) -> None:
        ours = theirs = 0.0
        for x in inputs:
            exact = results(copy.deepcopy(model).double(), topology, x.double())
            ours += results(on_kernels(copy.deepcopy(model), topology), topology, x).error(exact)
            theirs += results(copy.deepcopy(model), topology, x).error(exact)
        assert ours / len(inputs) <= 2 * max(theirs / len(inputs), FLOOR)

    return check


@pytest.fixture
def check_every_tensor() -> Callable[..., None]:
    """Compare as `check` does, but every tensor by itself, allowing twice the error torch makes in the same tensor.

    Medians over the inputs: a value that rounding moves across the zero of a ReLU changes every gradient below it, in torch as
    here. Where torch happens to be right to the last digit, one digit more is allowed.
    """

    def check(model: nn.Module, topology: so.Topology, *inputs: Tensor) -> None:
        ours: defaultdict[str, list[float]] = defaultdict(list)
        theirs: defaultdict[str, list[float]] = defaultdict(list)
        for seed, x in enumerate(inputs):
            exact = results(copy.deepcopy(model).double(), topology, x.double(), seed)
            for found, network in (
                (ours, on_kernels(copy.deepcopy(model), topology)),
                (theirs, copy.deepcopy(model)),
            ):
                for name, error in results(network, topology, x, seed).errors(exact).items():
                    found[name].append(error)
        too_large = {
            name: (median(errors), median(theirs[name]))
            for name, errors in ours.items()
            if median(errors) > 2 * max(median(theirs[name]), ULP)
        }
        assert not too_large

    return check
