"""Asserts in `forward`: they hold for every call, and what their messages print keeps nothing from the kernels."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparseopt as so

TIMM = """
class BatchNormAct2d(nn.BatchNorm2d):
    def __init__(self, features, act):
        super().__init__(features)
        self.drop, self.act = nn.Identity(), act

    def forward(self, x):
        torch._assert(x.ndim == 4, f"expected 4D input (got {x.ndim}D input)")
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        statistics = (self.running_mean, self.running_var, self.weight, self.bias)
        return self.act(self.drop(F.batch_norm(x, *statistics, self.training, self.momentum, self.eps)))
"""


def norm_act(act: nn.Module) -> nn.Module:
    """A module as timm has it, whether timm is installed or not."""
    return made(TIMM, "BatchNormAct2d", __name__="timm.layers.norm_act")(16, act)


def network(*acts: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [each for act in acts for each in (nn.Conv2d(16, 16, 3, padding=1, bias=False), norm_act(act))]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # as if it had been trained
            assert module.running_mean is not None
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
    return model


ACTS = {
    "relu": (nn.ReLU(inplace=True), nn.ReLU()),
    "none": (nn.Identity(), nn.ReLU()),
    "silu": (nn.SiLU(inplace=True), nn.SiLU()),
}


@pytest.mark.parametrize("acts", ACTS.values(), ids=list(ACTS))
def test_timms_norm_with_an_activation_runs_with_its_convolution(
    acts: tuple[nn.Module, ...], tmp_path: Path
) -> None:
    model = network(*acts)
    topology = so.sparsify(model, 0.8, distribution="uniform")
    dense, x = copy.deepcopy(model), torch.randn(4, 16, 6, 6)
    engine = so.compile_inference(model)
    assert "2 of 3 layers on sparse kernels" in engine.summary()
    expected = dense.eval()(x)
    for _ in range(3):
        torch.testing.assert_close(engine(x), expected, rtol=1e-4, atol=1e-5)
    if not isinstance(acts[1], nn.SiLU):
        engine.save(tmp_path / "engine")
        torch.testing.assert_close(so.load_engine(tmp_path / "engine")(x), expected, rtol=1e-4, atol=1e-5)
    so.accelerate(model, topology)
    assert {"0", "2"} <= set(so.kernels.accelerated_layers(model))
    dense.train()
    for _ in range(2):
        for each in (model, dense):
            each.zero_grad()
            each(x).square().sum().backward()
    for (name, mine), its in zip(model.named_parameters(), dense.parameters(), strict=True):
        assert mine.grad is not None
        assert its.grad is not None
        mask = topology.masks.get(name, torch.tensor(True))
        torch.testing.assert_close(mine.grad * mask, its.grad * mask, rtol=1e-3, atol=1e-4)
    for mine, its in zip(model.buffers(), dense.buffers(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)


def test_an_activation_that_is_replaced_is_the_one_that_runs() -> None:
    model: Any = network(nn.ReLU(), nn.ReLU())
    topology = so.sparsify(model, 0.8, distribution="uniform")
    so.accelerate(model, topology)
    x = torch.randn(4, 16, 6, 6)
    model(x)
    model[1].act = nn.Tanh()
    expected = copy.deepcopy(model)
    so.kernels.restore(expected)
    torch.testing.assert_close(model(x), expected(x), rtol=1e-4, atol=1e-5)


class Checked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))


PLAIN = """
class Plain(Checked):  # as a text, since pytest writes the asserts of tests anew
    def forward(self, x):
        assert x.ndim == 4, f"expected four dimensions, got {x.ndim} of {x.shape[0]}"
        assert x.shape[1] == 16 and x.shape[0] < 9
        assert not (x.shape[1] == 15 or x.ndim == 3)
        return self.b(self.a(x).relu())
"""


class Torchs(Checked):
    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.ndim == 4, f"expected four dimensions, got {x.ndim} of {x.shape[0]}")
        torch._assert(x.shape[0] < 9, "at most 8")
        return self.b(self.a(x).relu())


def made(source: str, name: str, **names: Any) -> Any:
    """A class from its text."""
    names |= {"nn": nn, "torch": torch, "F": F}
    exec(source, names)
    return names[name]


@pytest.mark.parametrize("plain", [True, False])
def test_an_assert_is_followed_and_asks_at_every_call(plain: bool) -> None:
    torch.manual_seed(0)
    kind = made(PLAIN, "Plain", Checked=Checked, __name__="plain") if plain else Torchs
    model, x = kind(), torch.randn(4, 16, 6, 6)
    topology = so.sparsify(model, 0.9, distribution="uniform")
    dense = copy.deepcopy(model)
    engine = so.compile_inference(model)
    assert "2 of 2 layers on sparse kernels" in engine.summary()
    so.accelerate(model, topology)
    assert set(so.kernels.accelerated_layers(model)) == {"a", "b"}
    for sparse in (engine, model):
        for _ in range(5):
            torch.testing.assert_close(sparse(x), dense(x), rtol=1e-4, atol=1e-5)
        with pytest.raises(AssertionError):
            sparse(torch.randn(10, 16, 6, 6))


class Looks(Checked):
    """What a text decides would be frozen in a trace."""

    def forward(self, x: Tensor) -> Tensor:
        text = f"{x.shape[0]}"
        torch._assert(x.ndim == 4, text)
        return self.b(self.a(x).relu()) * (2.0 if text == "4" else 1.0)


class Says(Checked):
    said: tuple[str, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        Says.said = (*Says.said, f"{x.shape[0]}")
        return self.b(self.a(x).relu()) * (2.0 if Says.said[-1] == "4" else 1.0)


@pytest.mark.parametrize("kind", [Looks, Says])
def test_a_text_that_is_more_than_a_message_is_not_frozen(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind()
    topology = so.sparsify(model, 0.9, distribution="uniform")
    dense = copy.deepcopy(model)
    engine = so.compile_inference(model)
    so.accelerate(model, topology)
    for rows in (4, 3, 4):
        x = torch.randn(rows, 16, 6, 6)
        for sparse in (engine, model):
            torch.testing.assert_close(sparse(x), dense(x), rtol=1e-4, atol=1e-5)


CAUGHT = """
class Caught(Checked):
    def forward(self, x):
        try:
            assert x.sum() > 0
        except AssertionError:
            x = -x
        return self.b(self.a(x).relu())
"""


def test_an_assert_that_the_model_catches_does_not_raise() -> None:
    model = made(CAUGHT, "Caught", Checked=Checked, __name__="caught")()
    so.sparsify(model, 0.8, distribution="uniform")
    engine, x = so.compile_inference(model), torch.rand(4, 16, 6, 6)
    for each in (x, -x):
        torch.testing.assert_close(engine(each), model.eval()(each), rtol=1e-4, atol=1e-5)


class Said(Checked):
    """A text that goes elsewhere before an assert says it."""

    def forward(self, x: Tensor) -> Tensor:
        said: list[str] = []
        said.append(f"{x.shape[-1]}")
        torch._assert(x.shape[1] == 16, said[0])
        return self.b(self.a(x)) * len(said[0])


class Shown(Checked):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)) * len(f"{x.shape[-1]!r}")


@pytest.mark.parametrize("kind", [Said, Shown])
def test_a_text_that_is_read_is_that_of_the_value(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = kind(), torch.randn(4, 16, 6, 6)
    topology = so.sparsify(model, 0.8, distribution="uniform")
    expected = model(x)
    torch.testing.assert_close(so.compile_inference(model)(x), expected, rtol=1e-4, atol=1e-5)
    so.accelerate(model, topology)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
