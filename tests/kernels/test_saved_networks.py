"""Engines of networks of every common kind are saved, run without the model's code, and give the same bits."""

import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.damaged import places
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

import sparseopt as so
from sparseopt.kernels.frozen import region
from sparseopt.lab.models.decoder import Decoder

WIDTH, TOKENS = 128, 50


class Attention(nn.Module):
    """As vision transformers write it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.drop = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
        p = self.drop.p if self.training else 0.0
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.drop(self.proj(x.transpose(1, 2).reshape(batch, tokens, width)))


class TorchAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class VisionBlock(nn.Module):
    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, WIDTH))
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.scale * self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches, a class token, positions, blocks, and a check of the size whose message shows the size."""

    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.patches, self.size = nn.Conv2d(3, WIDTH, 4, 4), 16
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.position = nn.Parameter(torch.randn(1, 17, WIDTH))
        self.blocks = nn.Sequential(*(VisionBlock(attention) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        torch._assert(height == self.size, f"height {height}, not {self.size}")
        torch._assert(width == self.size, f"width {width}, not {self.size}")
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class TextEncoder(nn.Module):
    """Torch's own layers, one by one and stacked, and a decoder stack with a mask made of the length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 256, batch_first=True, norm_first=True)
        one = nn.TransformerEncoderLayer(WIDTH, 4, 256, 0.2, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(one, 2, nn.LayerNorm(WIDTH))
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(WIDTH, 4, 256, batch_first=True, bias=False), 2
        )
        self.head = nn.Linear(WIDTH, 600)
        self.position: Tensor
        self.register_buffer("position", torch.randn(1, 64, WIDTH))

    def forward(self, text: Tensor) -> Tensor:
        length = text.size(1)
        x = self.embedding(text) + self.position[:, :length]
        memory = self.encoder(self.layer(x))
        mask = torch.triu(torch.full((length, length), float("-inf"), device=text.device), 1)
        return F.log_softmax(self.head(self.decoder(x, memory, tgt_mask=mask)), dim=-1)


class CausalAttention(nn.Module):
    """Written out, with the triangle in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.triangle: Tensor
        self.register_buffer("triangle", torch.tril(torch.ones(1, 1, 64, 64)))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.size()
        q, k, v = (
            each.view(batch, length, 4, width // 4).transpose(1, 2) for each in self.qkv(x).chunk(3, 2)
        )
        scores = (q @ k.transpose(-2, -1)) * (width // 4) ** -0.5
        scores = scores.masked_fill(self.triangle[:, :, :length, :length] == 0, float("-inf"))
        mixed = F.dropout(F.softmax(scores, dim=-1), 0.1, self.training) @ v
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width))


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.recurrent = kind(20, 64, **options)
        self.first, self.second = nn.Linear(64 * (1 + self.recurrent.bidirectional), 300), nn.Linear(300, 300)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        y, state = self.recurrent(x)
        return self.second(torch.relu(self.first(y))), state


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.LSTMCell(8, 16),
            nn.GRUCell(16, 16),
            nn.RNNCell(16, 4, nonlinearity="relu"),
        )

    def forward(self, x: Tensor) -> Tensor:
        h, cell = self.a(x[:, 0])
        g = self.b(h)
        for step in range(1, 4):
            h, cell = self.a(x[:, step], (h, cell))
            g = self.b(h, g)
        return self.c(g)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class Squeezed(nn.Module):
    """A block of a MobileNetV3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.Conv2d(width, 32, 1, bias=False), nn.BatchNorm2d(32), nn.Hardswish(True))
        self.deep = nn.Sequential(
            nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.BatchNorm2d(32), nn.SiLU(True)
        )
        self.a, self.b, self.down = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 32, 1), nn.Conv2d(32, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.deep(self.up(x))
        y = y * F.hardsigmoid(self.b(F.relu(self.a(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.down(y)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
        self.up, self.norm = nn.ConvTranspose2d(32, 16, 2, 2), nn.GroupNorm(4, 16)
        self.c, self.out = nn.Conv2d(32, 16, 3, padding=1), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.a(x))
        up = F.silu(self.norm(self.up(torch.relu(self.b(a)))))
        up = F.interpolate(up, size=a.shape[-2:], mode="bilinear", align_corners=False)
        return torch.sigmoid(self.out(torch.relu(self.c(torch.cat([up, a], dim=1)))))


def generator() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(16, 256), nn.Unflatten(1, (16, 4, 4)), nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False)),
        *(
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.ReflectionPad2d(1),
        ),
        *(nn.Conv2d(8, 8, 3), nn.PReLU(), nn.ConvTranspose2d(8, 12, 3, 2, 1, output_padding=1)),
        *(nn.PixelShuffle(2), nn.InstanceNorm2d(3, affine=True), nn.Tanh()),
    )


class WindowsAndShuffles(nn.Module):
    """What shifted windows, shuffled channels and text convolutions do with their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.text, self.out = nn.Conv2d(3, 16, 1), nn.Conv1d(16, 24, 3), nn.Linear(64, 40)
        self.bias = nn.Parameter(torch.randn(49, 4))
        self.index: Tensor
        self.register_buffer("index", torch.randint(49, (4, 4)))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.stem(x)
        batch, channels, height, width = x.size()
        shuffled = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous().flatten(1, 2)
        rolled = torch.roll(shuffled.permute(0, 2, 3, 1), shifts=(-1, -1), dims=(1, 2))
        merged = torch.cat(
            [rolled[:, ::2, ::2], rolled[:, 1::2, ::2], rolled[:, ::2, 1::2], rolled[:, 1::2, 1::2]], -1
        )
        table = self.bias[self.index.view(-1)].view(4, 4, -1).permute(2, 0, 1)
        words = F.relu(self.text(x.flatten(2)))
        best = F.max_pool1d(words, words.size(2)).squeeze(2).to(torch.float64)
        top = torch.einsum("bhwc->bchw", self.out(merged)).amax((2, 3)).topk(3, dim=1)
        return (
            top.values,
            top[1],
            table,
            best,
            torch.arange(width, device=x.device) * 2,
            x.float().max(dim=1).values,
        )


def follows_devices() -> bool:
    """Can the torch at hand trace `device=x.device`? The oldest that is supported cannot."""
    try:
        torch.fx.symbolic_trace(lambda x: torch.arange(8, device=x.device))
    except TypeError:
        return False
    return True


class Case:
    """`device`: it makes tensors where its input is."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        *shapes: tuple[int, ...],
        text: bool = False,
        device: bool = False,
    ) -> None:
        self.make, self.shapes, self.text, self.device = make, shapes, text, device

    def can_be_traced(self) -> bool:
        return not self.device or follows_devices()

    def engine(self) -> so.kernels.Engine:
        torch.manual_seed(0)
        self.model = self.make().eval()
        engine = so.compile_inference(self.model, so.sparsify(self.model, 0.8, distribution="uniform"))
        engine(self.inputs()[0])  # which may be the model's
        return engine

    def inputs(self) -> list[Tensor]:
        torch.manual_seed(1)
        return [torch.randint(TOKENS, each) if self.text else torch.randn(each) for each in self.shapes]


LOADING = """
import pathlib, sys, torch, sparseopt as so
from safetensors.torch import load_file
from sparseopt.kernels.frozen import region
from torch.utils._pytree import tree_leaves

region.faster_dense = lambda *_: None
for path in pathlib.Path(sys.argv[1]).glob("*.engine"):
    numbers = load_file(path.with_suffix(".numbers"))
    x = numbers.pop("x").clone()  # torch's own sums differ with where numbers lie in memory, and files align them by 8 bytes
    found = tree_leaves(so.load_engine(path)(x))
    same = [torch.equal(each, numbers.pop(f"y{index}")) for index, each in enumerate(found)]
    print(path.stem, all(same) and not numbers)
assert not any(name.startswith("sparseopt.lab") for name in sys.modules)
"""


@pytest.fixture(autouse=True)
def sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions run on the kernels: whether torch is faster is measured by every engine anew, and torch's bits are others."""
    monkeypatch.setattr(region, "faster_dense", lambda *_: None)


IMAGE, SEQUENCE = (2, 3, 16, 16), (5, 4, 20)
CASES: dict[str, Case] = {
    "vision transformer": Case(lambda: VisionTransformer(Attention), IMAGE, (1, 3, 16, 16)),
    "vision transformer, torch's attention": Case(lambda: VisionTransformer(TorchAttention), IMAGE),
    "decoder": Case(lambda: Decoder(TOKENS, 16, depth=2), (2, 16), (3, 5), text=True, device=True),
    "encoder layer": Case(lambda: nn.TransformerEncoderLayer(WIDTH, 4, 256), (5, 2, WIDTH)),
    "text encoder": Case(TextEncoder, (2, 16), (1, 7), text=True, device=True),
    "causal attention": Case(CausalAttention, (2, 16, WIDTH), (1, 7, WIDTH)),
    "LSTM alone": Case(lambda: nn.LSTM(20, 64), SEQUENCE, (7, 20)),
    "LSTM": Case(lambda: Recurrent(nn.LSTM), SEQUENCE),
    "LSTM, projected": Case(lambda: nn.LSTM(20, 64, 2, proj_size=8, bidirectional=True), SEQUENCE),
    "LSTM, bidirectional": Case(
        lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.2, bidirectional=True, batch_first=True), SEQUENCE
    ),
    "GRU": Case(lambda: Recurrent(nn.GRU, num_layers=3, bias=False, batch_first=True), SEQUENCE),
    "GRU, bidirectional": Case(lambda: Recurrent(nn.GRU, bidirectional=True), SEQUENCE),
    "RNN": Case(lambda: Recurrent(nn.RNN, nonlinearity="relu", num_layers=2), SEQUENCE),
    "cells": Case(Cells, (2, 4, 8)),
    "ConvNeXt": Case(lambda: nn.Sequential(nn.Conv2d(3, 64, 4, 4), ConvNeXtBlock(64)), (2, 3, 32, 32)),
    "MobileNetV3": Case(
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), Squeezed(16), nn.Flatten(), nn.Softmax(1)), IMAGE
    ),
    "U-Net": Case(UNet, IMAGE, (1, 3, 12, 20)),
    "generator": Case(generator, (2, 16)),
    "windows and shuffles": Case(WindowsAndShuffles, (2, 3, 8, 8), (1, 3, 8, 8), device=True),
}


def same(found: Any, right: Any) -> bool:
    return all(
        torch.equal(one, other) for one, other in zip(tree_leaves(found), tree_leaves(right), strict=True)
    )


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", CASES)
def test_a_loaded_engine_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    if not case.can_be_traced():
        pytest.skip("this torch cannot trace device=x.device")
    engine = case.engine()
    engine.save(tmp_path / "engine.safetensors")
    loaded = so.load_engine(tmp_path / "engine.safetensors")
    for x in case.inputs():
        with torch.no_grad():
            expected = case.model(x)
        engine(x)
        assert same(loaded(x), engine(x))
        for found, right in zip(tree_leaves(loaded(x)), tree_leaves(expected), strict=True):
            torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_loaded_engines_need_no_code_of_the_model(tmp_path: Path) -> None:
    cases = [case for case in CASES.values() if case.can_be_traced()]
    for number, case in enumerate(cases):
        engine, x = case.engine(), case.inputs()[0]
        engine.save(tmp_path / f"{number}.engine")
        outputs = {f"y{index}": each.contiguous() for index, each in enumerate(tree_leaves(engine(x)))}
        save_file({"x": x, **outputs}, tmp_path / f"{number}.numbers")
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.splitlines()) == sorted(f"{number} True" for number in range(len(cases)))


def test_a_size_the_model_refuses_is_refused(tmp_path: Path) -> None:
    CASES["vision transformer"].engine().save(tmp_path / "engine")
    with pytest.raises(ValueError, match="height <value>, not 16"):
        so.load_engine(tmp_path / "engine")(torch.zeros(1, 3, 20, 16))


def test_a_state_is_given_to_a_recurrent_layer(tmp_path: Path) -> None:
    class Continued(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(20, 64)

        def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Any:
            return self.lstm(x, (h, c))

    model = Continued().eval()
    engine = so.compile_inference(model)
    engine.save(tmp_path / "engine")
    x, h, c = torch.randn(5, 2, 20), torch.randn(1, 2, 64), torch.randn(1, 2, 64)
    assert same(so.load_engine(tmp_path / "engine")(x, h, c), engine(x, h, c))
    with pytest.raises(RuntimeError, match="hidden"):
        so.load_engine(tmp_path / "engine")(x, h[:, :, :5], c)


def test_a_recurrent_layer_takes_packed_sequences(tmp_path: Path) -> None:
    model = nn.GRU(20, 64).eval()
    so.compile_inference(model).save(tmp_path / "engine")
    packed = pack_padded_sequence(torch.randn(5, 2, 20), torch.tensor([5, 3]))
    found, last = so.load_engine(tmp_path / "engine")(packed)
    with torch.no_grad():
        right, right_last = model(packed)
    assert torch.equal(found.data, right.data)
    assert torch.equal(last, right_last)


def test_weights_that_are_called_twice_are_written_once(tmp_path: Path) -> None:
    CASES["cells"].engine().save(tmp_path / "engine")
    weights = sum(each.numel() for each in CASES["cells"].model.parameters())
    with safe_open(tmp_path / "engine", framework="pt") as file:
        assert sum(file.get_tensor(name).numel() for name in file.keys()) == weights  # noqa: SIM118


def test_an_activation_in_place_is_one_when_loaded(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.silu, self.selu = nn.Linear(300, 300), nn.SiLU(True), nn.SELU(True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x).sin()
            return self.silu(x) + x + self.selu(x)

    model = Twice().eval()
    engine, x = so.compile_inference(model, so.sparsify(model, 0.8)), torch.randn(4, 300)
    engine.save(tmp_path / "engine")
    with torch.no_grad():
        torch.testing.assert_close(engine(x), model(x))
    assert torch.equal(so.load_engine(tmp_path / "engine")(x), engine(x))


class Doubling(nn.Conv2d):
    """Inherits its forward, and not all that it calls."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return 2 * super()._conv_forward(input, weight, bias)


class Sliced(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.igamma(x)


def hooked() -> nn.Module:
    def more(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output + 1

    layer = nn.Conv2d(3, 4, 3)
    layer.register_forward_hook(more)
    return layer


def own_activation() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 4, 64, activation=torch.tanh)


def replaced_part() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 64)
    layer.linear1 = nn.Sequential(nn.Linear(WIDTH, 64))  # pyright: ignore[reportAttributeAccessIssue]
    return layer


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Doubling(3, 4, 3), "'1.0', a Doubling"),
        (hooked, "'1.0', a Conv2d"),
        (Sliced, "in its module '1.0' it calls the method 'igamma'"),
        (own_activation, "'1.0', a TransformerEncoderLayer"),
        (replaced_part, "'1.0', a TransformerEncoderLayer"),
        (lambda: nn.Embedding(5, 6, max_norm=1.0), "'1.0', a Embedding"),
    ],
)
def test_what_a_file_cannot_hold_is_said_with_its_place(
    tmp_path: Path, make: Callable[[], nn.Module], named: str
) -> None:
    engine = so.compile_inference(nn.Sequential(nn.Linear(9, 9), nn.Sequential(make())))
    engine._compared = None  # not called: what is in the way is known without
    with pytest.raises(ValueError, match=named):
        engine.save(tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


class Operations:
    """The operations of a file, of which a test changes one."""

    def __init__(self, operations: list[Any], tensors: dict[str, Tensor]) -> None:
        self.all, self.tensors = operations, tensors

    def module(self, name: str) -> dict[str, Any]:
        return next(each for each in self.all if each.get("module") == name)

    def options(self, name: str) -> dict[str, Any]:
        return self.module(name)["options"]

    def call(self, name: str) -> dict[str, Any]:
        return next(each for each in self.all if name in (each.get("call"), each.get("method")))

    def tensor(self, name: str, key: str, tensor: Tensor) -> None:
        self.tensors[self.module(name)["state"][key]] = tensor


def changed(path: Path, change: Callable[[Operations], Any]) -> Path:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    operations = Operations(json.loads(metadata["operations"]), tensors)
    change(operations)
    metadata["operations"] = json.dumps(operations.all)
    save_file(
        {name: each.contiguous() for name, each in tensors.items()}, path.with_suffix(".changed"), metadata
    )
    return path.with_suffix(".changed")


class Everything(nn.Module):
    """One of every kind of operation."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.lstm = nn.ConvTranspose2d(3, 8, 2, 2), nn.LSTM(8, 8, 2)
        self.attention = nn.MultiheadAttention(8, 2)
        layer = nn.TransformerEncoderLayer(8, 2, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.grow = nn.Upsample(scale_factor=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.grow(self.up(x)).flatten(2).permute(2, 0, 1)
        x = self.encoder(self.lstm(x)[0])
        x = (
            self.attention(x, x, x)[0]
            .to(torch.float64)
            .to(dtype=x.dtype, memory_format=torch.preserve_format)
        )
        return F.scaled_dot_product_attention(x, x, x)[:, 1:]


HOSTILE: dict[str, Callable[[Operations], Any]] = {
    "another module": lambda file: file.module("LSTM").update(module="Sequential"),
    "no module": lambda file: file.module("LSTM").update(module="functional"),
    "a list for a module": lambda file: file.module("LSTM").update(module=["LSTM"]),
    "layers without end": lambda file: file.options("LSTM").update(num_layers=10**9),
    "layers of a stack": lambda file: file.options("TransformerEncoder").update(num_layers=10**9),
    "no layers": lambda file: file.options("TransformerEncoder").update(num_layers=0),
    "huge": lambda file: file.options("LSTM").update(hidden_size=10**9),
    "larger than its weights": lambda file: file.options("LSTM").update(hidden_size=9),
    "a word for a size": lambda file: file.options("LSTM").update(hidden_size="8"),
    "true for a size": lambda file: file.options("LSTM").update(hidden_size=True),
    "a number for a flag": lambda file: file.options("LSTM").update(batch_first=1),
    "an option too few": lambda file: file.options("LSTM").pop("bias"),
    "an option too many": lambda file: file.options("LSTM").update(device="cuda"),
    "options that are none": lambda file: file.module("LSTM").update(options=[]),
    "heads": lambda file: file.options("MultiheadAttention").update(num_heads=3),
    "no heads": lambda file: file.options("MultiheadAttention").update(num_heads=0),
    "activation": lambda file: file.options("TransformerEncoder").update(activation="eval"),
    "groups": lambda file: file.options("ConvTranspose2d").update(groups=0),
    "stride": lambda file: file.options("ConvTranspose2d").update(stride=[0, 0]),
    "kernel": lambda file: file.options("ConvTranspose2d").update(kernel_size=[2**40, 2]),
    "padding": lambda file: file.options("ConvTranspose2d").update(padding="code"),
    "nested": lambda file: file.options("ConvTranspose2d").update(stride=[[2], [2]]),
    "mode": lambda file: file.options("Upsample").update(mode="os.system"),
    "scale": lambda file: file.options("Upsample").update(scale_factor="2"),
    "no tensor": lambda file: file.module("LSTM")["state"].pop("weight_ih_l0"),
    "another tensor": lambda file: file.module("LSTM")["state"].update(weight_ih_l9="tensor 0"),
    "a tensor that is not there": lambda file: file.module("LSTM")["state"].update(weight_ih_l0="nothing"),
    "shape": lambda file: file.tensor("LSTM", "weight_hh_l1", torch.zeros(32, 7)),
    "type": lambda file: file.tensor("LSTM", "weight_hh_l1", torch.zeros(32, 8, dtype=torch.float64)),
    "no arguments": lambda file: file.module("LSTM").pop("args"),
    "arguments that are none": lambda file: file.module("LSTM").update(kwargs=[]),
    "method": lambda file: file.call("permute").update(method="share_memory_"),
    "special method": lambda file: file.call("permute").update(method="__reduce__"),
    "method of nothing": lambda file: file.call("permute").update(args=[]),
    "attribute": lambda file: file.call("attribute")["args"].__setitem__(1, "__class__"),
    "dtype": lambda file: file.call("to")["args"].__setitem__(1, {"dtype": "object"}),
    "device": lambda file: file.call("to")["args"].__setitem__(1, {"device": "cuda:7"}),
    "memory": lambda file: file.call("to")["args"].__setitem__(1, {"memory_format": "__name__"}),
    "slice": lambda file: file.call("operator.getitem")["args"].__setitem__(1, {"slice": [1, 2, 3, 4]}),
    "deep": lambda file: file.call("to")["args"].__setitem__(1, nested(400)),
    "function": lambda file: file.call("functional.scaled_dot_product_attention").update(call="torch.load"),
}


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"list": [value]}
    return {"list": [value, {"list": 0}]}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("engines") / "engine.safetensors"
    engine = so.compile_inference(Everything().eval())
    engine(torch.zeros(1, 3, 2, 2))
    engine.save(path)
    assert so.load_engine(path)(torch.zeros(1, 3, 2, 2)).shape == (64, 0, 8)
    return path


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_refused(everything: Path, what: str) -> None:
    with pytest.raises(ValueError, match="not an engine"):
        so.load_engine(changed(everything, HOSTILE[what]))


def test_attention_does_not_read_beyond_its_values(everything: Path) -> None:
    """Torch computes with whatever lies behind them."""

    def fewer_values(file: Operations) -> None:
        file.tensors["few"] = torch.zeros(64, 1, 8)[:, :0]
        file.call("functional.scaled_dot_product_attention")["args"][2] = {"tensor": "few"}

    loaded = so.load_engine(changed(everything, fewer_values))
    with pytest.raises(ValueError, match="1 keys with 0 values"):
        loaded(torch.zeros(1, 3, 2, 2))


@pytest.mark.filterwarnings("ignore")
def test_random_changes_are_refused_or_run(everything: Path) -> None:
    """Whatever one number or word of the program is changed to, there is a result or an exception of Python."""
    generator, x = random.Random(0), torch.randn(2, 3, 2, 2)
    values = [0, 1, -1, 2, 3, 7, 1000, 2**40, None, True, "x", [], {}, 0.5, {"node": 0}, {"node": 3}]

    def change(file: Operations) -> None:
        place, key = generator.choice(list(places(file.all)))
        place[key] = generator.choice(values)

    for _ in range(150):
        path = changed(everything, change)
        with contextlib.suppress(ValueError, TypeError, RuntimeError, MemoryError, IndexError):
            so.load_engine(path)(x)


def test_layers_of_a_stack_that_differ_are_not_saved_as_if_they_did_not(tmp_path: Path) -> None:
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2)
    setattr(decoder.layers[1], "activation", F.gelu)  # noqa: B010

    class Decoded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.decoder = nn.Linear(8, 8), decoder

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(self.first(x), x)

    model = Decoded().eval()
    so.sparsify(model, 0.8, include="first.*")
    with pytest.raises(ValueError, match="decoder"):
        so.compile_inference(model).save(tmp_path / "engine")


@pytest.mark.parametrize("padded", [nn.CircularPad2d((-1, 1, 0, 0)), None])
def test_padding_that_goes_round_by_less_than_nothing_is_refused(padded: Any, tmp_path: Path) -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.pad = nn.Conv2d(8, 8, 3), padded

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            return F.pad(x, (-1, 1), mode="circular") if self.pad is None else self.pad(x)

    def loaded() -> so.kernels.Engine:
        so.compile_inference(model).save(tmp_path / "engine")
        return so.load_engine(tmp_path / "engine")

    model = Padded().eval()
    so.sparsify(model, 0.8)
    with pytest.raises(ValueError, match="pad"):
        loaded()(torch.randn(1, 8, 8, 8))
