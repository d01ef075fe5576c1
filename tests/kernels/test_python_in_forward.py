"""Accelerating a model freezes nothing: the Python of `forward` does at every call what it says."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparseopt as so


class Body(nn.Module):
    """Two sparse layers, for whoever does something around them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(20, 64), nn.Linear(64, 8)

    def body(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


class Scheduled(Body):
    alpha = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.alpha * self.body(x)


class Noisy(Body):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)) + torch.randn(64))


class StochasticDepth(Body):
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if random.random() < 0.5 else x[:, :8]


class Counting(Body):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.body(x)


class Shifted(Body):
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.shift


def drop_path(
    x: Tensor, drop_prob: float = 0.0, training: bool = False, scale_by_keep: bool = True
) -> Tensor:
    """As timm has it."""
    if drop_prob == 0.0 or not training:
        return x
    keep_prob = 1 - drop_prob
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    random_tensor = x.new_empty(shape).bernoulli_(keep_prob)
    if keep_prob > 0.0 and scale_by_keep:
        random_tensor.div_(keep_prob)
    return x * random_tensor


class DropPath(nn.Module):
    def __init__(self, drop_prob: float = 0.0, scale_by_keep: bool = True) -> None:
        super().__init__()
        self.drop_prob, self.scale_by_keep = drop_prob, scale_by_keep

    def forward(self, x: Tensor) -> Tensor:
        return drop_path(x, self.drop_prob, self.training, self.scale_by_keep)


class Dropping(Body):
    def __init__(self) -> None:
        super().__init__()
        self.drop = DropPath(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :8] + self.drop(self.body(x))


def pair(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The model accelerated, at least in part, and a dense copy."""
    topology = so.sparsify(model, 0.9, distribution="uniform")
    dense = copy.deepcopy(model)
    so.accelerate(model, topology)
    assert set(so.kernels.accelerated_layers(model)) == {"a", "b"}
    return model, dense


def same_outputs(model: nn.Module, dense: nn.Module, calls: int = 5) -> list[Tensor]:
    """What both give for the same input and the same state of all generators, call after call."""
    x = torch.randn(6, 20, generator=torch.Generator().manual_seed(3))
    found: list[list[Tensor]] = []
    for each in (model, dense):
        torch.manual_seed(1)
        random.seed(1)
        found.append([each(x).detach() for _ in range(calls)])
    for mine, its in zip(*found, strict=True):
        torch.testing.assert_close(mine, its)
    return found[0]


def test_a_number_that_the_loop_changes() -> None:
    model, dense = pair(Scheduled())
    same_outputs(model, dense)
    for step in range(8):
        model.alpha = dense.alpha = 1.0 + step / 8  # pyright: ignore
        same_outputs(model, dense, 2)
    assert set(so.kernels.accelerated_layers(model)) == {"a", "b"}  # layer by layer, when it keeps changing


def test_noise_is_new_at_every_call() -> None:
    outputs = same_outputs(*pair(Noisy()))
    assert not torch.equal(outputs[0], outputs[1])


def test_stochastic_depth_takes_both_paths() -> None:
    outputs = same_outputs(*pair(StochasticDepth()), calls=20)
    assert 1 < len({float(each.sum()) for each in outputs}) < 20


def test_a_counter_counts() -> None:
    model, dense = pair(Counting())
    same_outputs(model, dense)
    assert model.calls == dense.calls == 5


def test_a_buffer_that_is_replaced() -> None:
    model, dense = pair(Shifted())
    same_outputs(model, dense)
    model.shift = dense.shift = torch.ones(8)  # pyright: ignore[reportAttributeAccessIssue]
    same_outputs(model, dense)
    model.shift.add_(1)  # pyright: ignore[reportCallIssue]
    same_outputs(model, dense)


def test_drop_path_as_timm_has_it() -> None:
    model, dense = pair(Dropping())
    outputs = same_outputs(model, dense)
    assert not torch.equal(outputs[0], outputs[1])
    model.drop.drop_prob = dense.drop.drop_prob = 0.0  # pyright: ignore
    outputs = same_outputs(model, dense)
    assert torch.equal(outputs[0], outputs[1])
    same_outputs(model.eval(), dense.eval())


SCALE = 1.0


def scaled(x: Tensor) -> Tensor:
    return SCALE * x


class Global(Body):
    def forward(self, x: Tensor) -> Tensor:
        return scaled(self.body(x))


def test_a_global_name_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, dense = pair(Global())
    same_outputs(model, dense)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    same_outputs(model, dense)


class Config:
    gain = 1.0


class Configured(Body):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()

    def forward(self, x: Tensor) -> Tensor:
        return self.config.gain * self.body(x)


class Optional(Body):
    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        y = self.body(x)
        return y if gate is None else y * gate


class NoGradient(Body):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = torch.relu(self.a(x))
        return self.b(hidden)


class Caching(Body):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return self.body(x)


class Branching(Body):
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if x.sum() > 0 else self.b(self.a(x))


class Kinds(Body):
    def forward(self, x: Tensor | list[Tensor]) -> Tensor:
        return self.body(x if isinstance(x, Tensor) else x[0])


class Printing(Body):
    def forward(self, x: Tensor) -> Tensor:
        print("called")  # noqa: T201
        return self.body(x)


def test_objects_that_may_change_unseen() -> None:
    model, dense = pair(Configured())
    same_outputs(model, dense)
    model.config.gain = dense.config.gain = 2.0  # pyright: ignore
    same_outputs(model, dense)


def test_arguments_that_may_be_left_out() -> None:
    model, dense = pair(Optional())
    same_outputs(model, dense)
    x, gate = torch.randn(6, 20), torch.randn(8)
    torch.testing.assert_close(model(x, gate), dense(x, gate))
    torch.testing.assert_close(model(x, gate=gate), dense(x, gate))


def test_parts_without_gradient_have_none() -> None:
    model, dense = pair(NoGradient())
    same_outputs(model, dense)
    model(torch.randn(6, 20)).sum().backward()
    assert model.a.weight.grad is None  # pyright: ignore
    assert model.b.weight.grad is not None  # pyright: ignore


def test_lists_that_grow() -> None:
    model, dense = pair(Caching())
    same_outputs(model, dense)
    assert len(model.seen) == 5  # pyright: ignore
    assert all(type(each) is Tensor for each in model.seen)  # pyright: ignore


@pytest.mark.parametrize("make", [Branching, Kinds])
def test_paths_that_depend_on_the_data(make: Callable[[], nn.Module]) -> None:
    model, dense = pair(make())
    same_outputs(model, dense)
    x = torch.randn(6, 20)
    torch.testing.assert_close(model(-x), dense(-x))


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    same_outputs(*pair(Printing()))
    assert capsys.readouterr().out == "called\n" * 10


def test_a_backward_pre_hook_is_called() -> None:
    model, _ = pair(Global())
    seen: list[str] = []
    model.b.register_full_backward_pre_hook(lambda *_: seen.append("b"))  # pyright: ignore
    model(torch.randn(6, 20)).sum().backward()
    assert seen == ["b"]


def halved(module: nn.Linear) -> Callable[[Tensor], Tensor]:
    return lambda x: 0.5 * F.linear(x, module.weight, module.bias)


def test_a_forward_of_a_module_s_own() -> None:
    model, dense = pair(Global())
    for each in (model, dense):
        each.a.forward = halved(each.a)  # pyright: ignore
    same_outputs(model, dense)
    so.kernels.restore(model)
    same_outputs(model, dense)
    assert "forward" in model.a.__dict__  # pyright: ignore


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore
        return 2 * super().forward(x)


class Named(nn.Linear):
    """Does what it inherits."""


def test_classes_that_inherit_from_layers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Doubled(20, 30), nn.ReLU(), Named(30, 8))
    topology = so.sparsify(model, 0.9, distribution="uniform")
    dense = copy.deepcopy(model)
    so.accelerate(model, topology)
    assert so.kernels.accelerated_layers(model) == ("2",)
    same_outputs(model, dense)


def test_a_module_that_is_called_relu_and_is_none() -> None:
    class Wrong(Body):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.GELU()

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.relu(self.a(x)))

    same_outputs(*pair(Wrong()))


class Wrapped(nn.Module):
    """As trainers do: everything in one call, with a dictionary."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        out = {}
        out["y"] = self.network(batch["x"])
        return out


def test_a_part_that_can_be_traced_is_one_program() -> None:
    body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 8))
    model = Wrapped(body)
    topology = so.sparsify(model, 0.9, distribution="uniform")
    so.accelerate(model, topology)
    assert so.kernels.accelerated_layers(model) == ("network.0", "network.2")
    assert "forward" in body.__dict__
    assert "forward" not in body[0].__dict__
    so.kernels.restore(model)
    assert "forward" not in body.__dict__
