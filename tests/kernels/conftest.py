"""What the tests of the kernels share: a float64 reference, and how far float32 may be from it.

The reference runs the network in float64, then a few times more with errors put in: every sum of n terms t is off by
sqrt(n) u sum |t|, up or down by chance (u: the unit roundoff of float32), every other result r by u |r|. That is the size of
rounding errors with high probability, in whatever order the terms are added (Higham and Mary 2019), and the errors travel
through the network as rounding errors do. What the kernels give must be as close to the reference as those runs are. No number
here depends on the machine, and none on how well torch rounds on it.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import sparseopt as so
from sparseopt.kernels.accelerated import install
from sparseopt.kernels.native.build import BuildError, operators

ROUNDOFF = 2.0**-24
CHAIN = 64  # terms that follow one another in one sum in single precision: longer sums are added up in parts
DRAWS = 3
aten = torch.ops.aten


@pytest.fixture(scope="session", autouse=True)
def kernels() -> None:
    try:
        operators()
    except BuildError as reason:
        pytest.skip(str(reason))


Results = dict[str, Tensor]


def results(model: nn.Module, topology: so.Topology, x: Tensor, seed: int = 1) -> Results:
    """Output, gradients (at active weights) and buffers of one forward and backward pass."""
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = model(x)
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(y.shape, generator=generator)
    y.backward(gradient.to(y.dtype))
    assert x.grad is not None
    values = {"output": y.detach(), "input": x.grad}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        mask = topology.masks.get(name)
        values[f"grad {name}"] = parameter.grad if mask is None else parameter.grad * mask
    values |= {name: buffer.clone() for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    return values


def on_kernels(model: nn.Module, topology: so.Topology) -> nn.Module:
    """Accelerate however dense the model is, and see that the kernels run."""
    own = so.sparsify(
        model, topology.sparsity(), masks=topology.masks
    )  # the topology may be that of the original
    install(model, own, lambda _: True)
    assert so.kernels.accelerated_layers(model)
    return model


class WrittenOut(TorchFunctionMode):
    """Batch norm as the sums and products it consists of, so that errors can be put into each."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is nn.functional.batch_norm:
            return batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    axes, shape = [0, *range(2, x.dim())], [1, -1, *[1] * (x.dim() - 2)]
    if training:
        mean = x.mean(axes)
        deviation = x - mean.view(shape)
        variance = (deviation * deviation).mean(axes)
        if running_mean is not None and running_var is not None:
            count = x.numel() // x.shape[1]
            running_mean.lerp_(mean.detach(), momentum)
            running_var.lerp_(variance.detach() * count / (count - 1), momentum)
    else:
        assert running_mean is not None
        assert running_var is not None
        deviation, variance = x - running_mean.view(shape), running_var
    y = deviation * (variance + eps).rsqrt().view(shape)
    y = y if weight is None else y * weight.view(shape)
    return y if bias is None else y + bias.view(shape)


class Rounding(TorchDispatchMode):
    """Puts errors of the size of float32's into all that float64 computes; notes what decides at a ReLU."""

    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__()
        self._generator = generator
        self.decided: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (aten.relu, aten.clamp_min, aten.hardtanh):
            self.decided.append(args[0].detach().clone())
        if self._generator is not None:
            for value, size in sizes(func, args, out):
                signs = torch.randint(2, value.shape, generator=self._generator, dtype=value.dtype)
                value.add_(size * (2 * signs - 1), alpha=ROUNDOFF)
        return out


PRODUCTS = (aten.mm, aten.bmm)
SUMS = (aten.sum, aten.mean)


def sizes(func: Any, args: tuple[Any, ...], out: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """The results of an operation, and the size of their error in units of roundoff."""
    kind = func.overloadpacket
    if kind is aten.convolution_backward:
        gradient, x, weight = args[:3]
        terms = (weight.numel() // x.shape[1], *[gradient.numel() // gradient.shape[1]] * 2)
        for value, size, number in zip(out, func(*magnitudes(args)), terms, strict=True):
            if value is not None:
                yield value, size * chain(number)
    elif kind is aten.convolution:
        yield out, func(*magnitudes(args)) * chain(args[1][0].numel())
    elif kind in PRODUCTS or kind is aten.addmm:
        yield out, func(*magnitudes(args)) * chain(args[-1].shape[-2])
    elif kind in SUMS:
        yield out, func(*magnitudes(args)) * chain(args[0].numel() // max(out.numel(), 1))
    else:
        given = {each.untyped_storage().data_ptr() for each in args if isinstance(each, Tensor)}
        for value in out if isinstance(out, tuple | list) else [out]:
            new = isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in given
            if new and value.dtype == torch.float64:
                yield value, value.abs()


def magnitudes(args: tuple[Any, ...]) -> list[Any]:
    return [each.abs() if isinstance(each, Tensor) else each for each in args]


def chain(terms: int) -> float:
    return math.sqrt(min(max(terms, 1), CHAIN))


@dataclass(frozen=True)
class Reference:
    """What float64 gives, and how far float32 may be from it."""

    exact: Results
    allowed: dict[str, float]
    decided: bool
    """Is no value so close to the zero of a ReLU that rounding decides on which side it is?"""

    @classmethod
    def of(cls, model: nn.Module, topology: so.Topology, x: Tensor, seed: int) -> "Reference":
        exact, at_relus = run(model, topology, x, seed, None)
        squares, spread = dict.fromkeys(exact, 0.0), [torch.zeros_like(each) for each in at_relus]
        for draw in range(DRAWS):
            found, moved = run(model, topology, x, seed, torch.Generator().manual_seed(draw))
            for name, value in found.items():
                squares[name] += float((value - exact[name]).square().sum()) / DRAWS
            for total, ours, its in zip(spread, moved, at_relus, strict=True):
                total += (ours - its).square() / DRAWS
        allowed = {
            name: math.sqrt(square) + ROUNDOFF * float(exact[name].norm()) for name, square in squares.items()
        }
        decided = all(
            bool((each.square() >= total).all()) for each, total in zip(at_relus, spread, strict=True)
        )
        return cls(exact, allowed, decided)

    def errors(self, found: Results) -> dict[str, float]:
        """The error of every tensor, as a multiple of what is allowed."""
        errors = {name: float((found[name].double() - true).norm()) for name, true in self.exact.items()}
        return {name: error / self.allowed[name] if error else 0.0 for name, error in errors.items()}


def run(
    model: nn.Module, topology: so.Topology, x: Tensor, seed: int, generator: torch.Generator | None
) -> tuple[Results, list[Tensor]]:
    model, x = copy.deepcopy(model).double(), x.double()
    with WrittenOut(), Rounding(generator) as rounding:
        found = results(model, topology, x, seed)
    return found, rounding.decided


@pytest.fixture
def check() -> Callable[..., None]:
    """Compare an accelerated copy of a sparse model with float64, tensor by tensor, on the first input that suits.

    One for which rounding decides what passes a ReLU does not: any arithmetic may then be far off.
    """

    def check(model: nn.Module, topology: so.Topology, *inputs: Tensor) -> None:
        for seed, x in enumerate(inputs):
            reference = Reference.of(model, topology, x, seed)
            if reference.decided:
                found = results(on_kernels(copy.deepcopy(model), topology), topology, x, seed)
                errors = reference.errors(found)
                assert all(error <= 1 for error in errors.values()), errors
                return
        pytest.fail("rounding decides at a ReLU for every input given: give others")

    return check
