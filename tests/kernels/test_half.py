"""Activations that are kept as bfloat16: how far the results may be from float64, what it saves, and where it is refused.

Every value that is kept is off by at most u = 2^-8 of itself, and nothing else is beyond float32. The reference runs in float64,
then a few times more with every kept value (what a convolution gives, and what a ReLU gives) off by u, up or down by chance; the
kernels must be as close to the reference as those runs are. The networks' ReLUs are far from their zero, for no arithmetic
says what passes one that is not.
"""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import sparseopt as so
from sparseopt.kernels.acceleration import forwards
from sparseopt.kernels.conv.region import SparseRegion

UNIT = 2.0**-8
DRAWS = 4
aten = torch.ops.aten


class Network(nn.Module):
    """Stride 1 and 2, a residual sum, a projection, two readers of one activation, a mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(*sizes, bias=False)
            for sizes in ((3, 8, 3, 1, 1), (8, 8, 3, 1, 1), (8, 12, 3, 2, 1), (8, 12, 1, 2, 0))
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for channels in (8, 8, 12, 12))
        for norm in self.norms:
            assert isinstance(norm, nn.BatchNorm2d)
            with torch.no_grad():  # a deviation of one beside means of 8: no ReLU is close to zero
                norm.weight.uniform_(0.5, 1.0)
                norm.bias.copy_(torch.where(torch.rand_like(norm.bias) < 0.8, 8.0, -30.0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.convs[0](x)).relu()
        x = (self.norms[1](self.convs[1](x)) + x).relu()
        x = (self.norms[2](self.convs[2](x)) + self.norms[3](self.convs[3](x))).relu()
        return x.mean((2, 3))


class KeptRoughly(TorchDispatchMode):
    """Puts errors of the size of bfloat16's into what convolutions and ReLUs give."""

    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__()
        self._generator = generator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._generator is not None and func.overloadpacket in (aten.convolution, aten.relu):
            signs = 2 * torch.randint(2, out.shape, generator=self._generator, dtype=out.dtype) - 1
            out.add_(out.abs() * signs, alpha=UNIT)
        return out


def model_of(seed: int = 0, dense: str | None = None) -> tuple[Network, so.Topology]:
    torch.manual_seed(seed)
    model = Network()
    return model, so.sparsify(model, 0.6, exclude=dense)


def results(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    y = model(x)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype))
    assert x.grad is not None
    found = {"y": y.detach(), "x": x.grad}
    found |= {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return found | {name: each.clone() for name, each in model.named_buffers() if each.is_floating_point()}


def roughly(model: nn.Module, x: Tensor, draw: int | None) -> dict[str, Tensor]:
    own = copy.deepcopy(model).double()
    with KeptRoughly(None if draw is None else torch.Generator().manual_seed(draw)):
        return results(own, x.double())


@pytest.mark.parametrize("samples", [3, 7, 16])
@pytest.mark.parametrize("dense", [None, "convs.[123].weight"])
def test_results_are_as_close_as_the_rounding_of_what_is_kept_allows(samples: int, dense: str | None) -> None:
    model, topology = model_of(samples, dense)
    x = torch.randn(samples, 3, 11, 10)
    exact = roughly(model, x, None)
    drawn = [roughly(model, x, draw) for draw in range(DRAWS)]
    so.accelerate(model, topology, activations=torch.bfloat16, break_even=0.0)
    assert so.kernels.accelerated_layers(model)
    found = results(model, x)
    for name, true in exact.items():
        mask = topology.masks.get(name, torch.tensor(True))
        square = sum(float(((each[name] - true) * mask).square().sum()) for each in drawn) / DRAWS
        error = float(((found[name].double() - true) * mask).norm())
        assert error <= math.sqrt(square) + 1e-6 * float(true.norm()) + 1e-9, name
    assert not torch.equal(found["y"].double(), exact["y"])


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_steps_repeat_themselves_bit_by_bit(storage: str) -> None:
    torch.manual_seed(0)
    model = Network()
    topology = so.sparsify(model, 0.6, storage=storage)  # pyright: ignore[reportArgumentType]
    so.accelerate(model, topology, activations=torch.bfloat16)
    x = torch.randn(9, 3, 11, 10)
    first = results(model, x)
    for _ in range(4):
        model.zero_grad()
        again = results(model, x)
        for name in first:
            if "running" not in name:
                assert torch.equal(again[name], first[name]), name


def kept_bytes(model: nn.Module) -> int:
    """Of all buffers, after a step."""
    pieces = [piece.sparse for forward in forwards(model) for piece in forward.guarded()]
    (region,) = [piece for piece in pieces if isinstance(piece, SparseRegion)]
    free, _ = region._idle._runs[0].run.buffers.state()
    return sum(buffer.untyped_storage().nbytes() for _, buffer in free)


def test_memory_is_saved() -> None:
    kept = {}
    for dtype in (torch.float32, torch.bfloat16):
        model, topology = model_of()
        so.accelerate(model, topology, activations=dtype)
        for _ in range(2):
            model(torch.randn(32, 3, 24, 24)).sum().backward()
        kept[dtype] = kept_bytes(model)
    assert (
        kept[torch.bfloat16] < 0.8 * kept[torch.float32]
    )  # the region's inputs, and gradients, stay float32


def test_evaluation_and_dense_gradients_read_what_is_kept() -> None:
    model, topology = model_of()
    dense = copy.deepcopy(model)
    so.accelerate(model, topology, activations=torch.bfloat16)
    x = torch.randn(8, 3, 11, 10)
    topology.dense_grads.wanted = True
    found, true = results(model, x), results(dense, x)
    for name in topology.layers:
        error = (found[name] - true[name]).norm() / true[name].norm()
        assert error < 0.1, name  # of inactive weights too
    model.eval()
    dense.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(x), dense(x), rtol=0.05, atol=0.05)


def test_what_is_not_a_number_stays_so() -> None:
    model, topology = model_of()
    so.accelerate(model, topology, activations=torch.bfloat16)
    x = torch.randn(8, 3, 11, 10)
    x[0, 0, 5, 5] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    assert model(x).isnan().any()


def test_other_types_are_refused() -> None:
    model, topology = model_of()
    with pytest.raises(ValueError, match=r"activations.*float16"):
        so.accelerate(model, topology, activations=torch.float16)


def test_a_network_without_convolutions_is_refused() -> None:
    model = nn.Sequential(nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 10))
    topology = so.sparsify(model, 0.9)
    with pytest.raises(ValueError, match="convolutions"):
        so.accelerate(model, topology, activations=torch.bfloat16)
    assert not so.kernels.accelerated_layers(model)
