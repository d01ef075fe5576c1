"""Python that a trace cannot see through, and models that change: kernels and engines compute what the model computes."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.modules.module import register_module_forward_hook

import sparseopt as so


class Asking(nn.Module):
    """Two layers, and a question about the value between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(256, 512), nn.Linear(512, 256)

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class InASet(Asking):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.b(h * 10 if h.dim() in {2, 3} else h)


class AsAKey(Asking):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.b(h * {2: 10.0}.get(h.dim(), 1.0))


class AsText(Asking):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.b(h * 10 if f"{h.device}" == "cpu" else h)


class ByStr(Asking):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.b(h * 10 if str(h.dtype) == "torch.float32" else h)


class ByMatch(Asking):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        match h.shape:
            case (_, _):
                h = h * 10
            case _:
                pass
        return self.b(h)


class IsTensor(Asking):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)) * (10 if isinstance(x, Tensor) else 1))


class MaybeMasked(Asking):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = torch.relu(self.a(x))
        return self.b(h if mask is None else h * mask)


CLASSES = (InASet, AsAKey, AsText, ByStr, ByMatch, IsTensor, MaybeMasked)


def made(kind: type[Asking]) -> tuple[nn.Module, so.Topology, Tensor]:
    torch.manual_seed(0)
    model = kind().eval()
    return model, so.sparsify(model, 0.9), torch.randn(4, 256)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_engine_answers_as_the_call_does(kind: type[Asking]) -> None:
    model, topology, x = made(kind)
    right = model(x)
    engine = so.compile_inference(model, topology)
    assert "2 of 2 layers on sparse kernels" in engine.summary()  # later, some may be faster dense
    for _ in range(2):
        torch.testing.assert_close(engine(x), right)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_accelerated_model_answers_as_the_call_does(kind: type[Asking]) -> None:
    model, topology, x = made(kind)
    right = model(x)
    so.accelerate(model, topology)
    torch.testing.assert_close(model(x), right)


class InAMessage(Asking):
    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.shape[1] == 256, f"{x.shape[1]} features")
        return self.b(torch.relu(self.a(x)))


class BesideAMessage(Asking):
    def forward(self, x: Tensor) -> Tensor:
        torch._assert(f"{x.shape[1]}" == "256", "256 features")
        return self.b(torch.relu(self.a(x)))


class OverChunks(Asking):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.relu(self.a(each)) for each in x.chunk(2)])


class OfABuffer(Asking):
    def __init__(self) -> None:
        super().__init__()
        self.scale: Tensor
        self.register_buffer("scale", torch.rand(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x))) * self.scale[: x.shape[0]]


@pytest.mark.parametrize(
    ("kind", "traced"), [(InAMessage, True), (BesideAMessage, False), (OverChunks, True), (OfABuffer, True)]
)
def test_an_engine_follows_python_that_decides_nothing(kind: type[Asking], traced: bool) -> None:
    model, topology, _ = made(kind)
    engine = so.compile_inference(model, topology)
    for samples in (4, 4, 10, 10):
        x = torch.randn(samples, 256)
        with torch.no_grad():
            torch.testing.assert_close(engine(x), model(x), rtol=1e-4, atol=1e-5)
    assert isinstance(engine.program, GraphModule) is traced


def test_what_an_engine_cannot_follow_at_a_later_call_is_refused() -> None:
    model, topology, x = made(InAMessage)
    engine = so.compile_inference(model, topology)
    engine(x)
    with pytest.raises(AssertionError, match="features"):
        engine(x[:, :100])
    model, topology, x = made(OverChunks)
    engine = so.compile_inference(model, topology)
    engine(x)
    with pytest.raises(ValueError, match="2 parts of a tensor, and it has 1"):
        engine(x[:1])


def test_an_engine_of_arguments_that_may_be_left_out_takes_both_calls() -> None:
    model, topology, x = made(MaybeMasked)
    mask = torch.arange(512.0)
    for calls in (((x,), (x, mask)), ((x, mask), (x,))):
        engine = so.compile_inference(model, topology)
        for args in (*calls, *calls):
            torch.testing.assert_close(engine(*args), model(*args))


def test_calls_are_compared_once_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled(Asking):
        def forward(self, x: Tensor, parts: list[Tensor], scale: float) -> Tensor:  # pyright: ignore
            assert x is not None
            return self.b(torch.relu(self.a(x * scale + parts[0])))

    model, topology, x = made(Scaled)
    engine = so.compile_inference(model, topology)
    compared = engine._compared
    assert compared is not None
    calls: list[float] = []
    own = compared.model.forward
    monkeypatch.setattr(compared.model, "forward", lambda *args: (calls.append(args[2]), own(*args))[1])
    for scale in (1.0, 2.0, 3.0):
        torch.testing.assert_close(engine(x, [x], scale), model(x, [x], scale))
    assert calls == [1.0]


class Optional(nn.Module):
    """Arguments that most calls leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3), nn.Linear(16, 8)

    def forward(self, x: Tensor, mask: Tensor | None = None, features: bool = False) -> Tensor:
        h = torch.relu(self.b(torch.relu(self.a(x))))
        if mask is not None:
            h = h * mask
        h = h.mean((2, 3))
        return h if features else self.c(h)


def test_convolutions_run_on_the_kernels_where_arguments_may_be_left_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Optional().eval(), torch.randn(2, 3, 12, 12)
    engine = so.compile_inference(model, so.sparsify(model, 0.9))
    assert "3 of 3 layers on sparse kernels" in engine.summary()
    for _ in range(2):
        torch.testing.assert_close(engine(x), model(x), rtol=1e-4, atol=1e-5)
    engine.save(tmp_path / "engine.safetensors")
    loaded = so.load_engine(tmp_path / "engine.safetensors")
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError):
        loaded(x, torch.ones(8, 8))
    for _ in range(2):
        torch.testing.assert_close(engine(x, features=True), model(x, features=True))
        torch.testing.assert_close(engine(x, torch.zeros(8, 8)), model(x, torch.zeros(8, 8)))


def test_an_engine_that_was_not_compared_is_not_saved(tmp_path: Path) -> None:
    model, topology, _ = made(IsTensor)
    engine = so.compile_inference(model, topology)
    with pytest.raises(ValueError, match="call this engine once before it is saved"):
        engine.save(tmp_path / "engine.safetensors")


def double(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0] * 2 - 5,)


def test_an_engine_keeps_the_hooks_and_the_forward_of_the_model_itself() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).eval()
    topology, x = so.sparsify(model, 0.9), torch.randn(4, 256)
    handle = model.register_forward_pre_hook(double)
    engine = so.compile_inference(model, topology)
    for _ in range(2):
        torch.testing.assert_close(engine(x), model(x))
    handle.remove()
    model.forward = types.MethodType(lambda self, x: self[2](self[0](x)) * 7, model)
    engine = so.compile_inference(model, topology)
    for _ in range(2):
        torch.testing.assert_close(engine(x), model(x))


@pytest.mark.parametrize("head", [lambda: nn.Flatten(), lambda: nn.Flatten(1, 3)])
def test_an_engine_of_an_ordinary_network_is_saved(head: Callable[[], nn.Module], tmp_path: Path) -> None:
    convs = (
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ELU(),
        nn.Conv2d(16, 16, 3),
        nn.Softplus(),
    )
    model = nn.Sequential(*convs, nn.Conv2d(16, 8, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), head()).eval()
    engine = so.compile_inference(model, so.sparsify(model, 0.9))
    engine.save(tmp_path / "engine.safetensors")
    x = torch.randn(2, 3, 16, 16)
    loaded = so.load_engine(tmp_path / "engine.safetensors")
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", [0, 3], ids=["linear", "convolution"])
def test_a_batch_norm_whose_weight_changed_before_backward_is_refused(first: int) -> None:
    if first:
        layer, norm = nn.Conv2d(first, 32, 3), nn.BatchNorm2d(32)
        model = nn.Sequential(layer, norm, nn.ReLU(), nn.Conv2d(32, 8, 3))
        x = torch.randn(8, first, 10, 10)
    else:
        layer, norm = nn.Linear(256, 512), nn.BatchNorm1d(512)
        model, x = nn.Sequential(layer, norm, nn.ReLU(), nn.Linear(512, 64)), torch.randn(8, 256)
    so.accelerate(model, so.sparsify(model, 0.9))
    loss = model(x).square().sum()
    with torch.no_grad():
        norm.weight.mul_(1.5)
    with pytest.raises(RuntimeError, match="batch norm were changed in place"):
        loss.backward()
    model(x).square().sum().backward()


@pytest.mark.parametrize(
    ("stride", "setting"),
    [
        (1, {"padding_mode": "circular", "_reversed_padding_repeated_twice": [1, 1, 1, 1]}),
        (2, {"padding": (0, 0)}),
        (1, {"dilation": (2, 2)}),
        (1, {"stride": (2, 2)}),
    ],
)
def test_settings_of_a_layer_that_are_changed_afterwards_count(stride: int, setting: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Conv2d(8, 16, 3, stride, 1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(16, 8, 3))
    so.accelerate(model, so.sparsify(model, 0.9))
    x = torch.randn(2, 8, 16, 16)
    model(x)
    for name, value in setting.items():
        setattr(model[0], name, value)
    changed = model(x)
    so.kernels.restore(model)
    torch.testing.assert_close(changed, model(x))


def test_the_pooling_of_a_network_may_change_afterwards() -> None:
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(16, 8, 1))
    so.accelerate(model, so.sparsify(model, 0.9))
    x = torch.randn(2, 8, 16, 16)
    model(x)
    for name in ("kernel_size", "stride"):
        setattr(model[2], name, 3)
    changed = model(x)
    so.kernels.restore(model)
    torch.testing.assert_close(changed, model(x))


def test_hooks_of_all_modules_are_called() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    so.accelerate(model, so.sparsify(model, 0.9))
    seen: list[str] = []
    handle = register_module_forward_hook(lambda module, args, output: seen.append(type(module).__name__))
    try:
        model(torch.randn(4, 256))
    finally:
        handle.remove()
    assert seen == ["Linear", "ReLU", "Linear", "Sequential"]


@pytest.mark.parametrize("stats", [True, False])
def test_a_batch_norm_that_cannot_be_folded_stays_as_it_is(stats: bool) -> None:
    """Over the second of three axes, or without running statistics."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6) if stats else nn.BatchNorm1d(512, track_running_stats=False)
    model = nn.Sequential(nn.Linear(256, 512), norm, nn.ReLU(), nn.Linear(512, 256)).eval()
    engine = so.compile_inference(model, so.sparsify(model, 0.9))
    x = torch.randn(4, 6, 256) if stats else torch.randn(4, 256)
    torch.testing.assert_close(engine(x), model(x))
    assert ("no running statistics" in engine.summary()) is not stats


@pytest.mark.parametrize("image", [True, False])
def test_a_value_that_is_negative_by_a_bit_is_read_as_negative(image: bool) -> None:
    layer = nn.Conv2d(4, 8, 3) if image else nn.Linear(256, 512)
    model = nn.Sequential(layer, nn.ReLU()).eval()
    x = torch._neg_view(torch.randn(2, 4, 8, 8) if image else torch.randn(4, 256))  # pyright: ignore
    topology = so.sparsify(model, 0.9)
    right = model(x)
    torch.testing.assert_close(so.compile_inference(model, topology)(x), right)
    so.accelerate(model, topology)
    torch.testing.assert_close(model(x), right)
