"""Engines in files: the same results without the model, and files that are not engines are refused before anything runs."""

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

import sparseopt as so
from sparseopt.lab.models.resnet_cifar import CifarResNet


class Mixed(nn.Module):
    """Regions, chains, and dense operations of many kinds around them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.pool = nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.MaxPool2d(3, 2, 1)
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.fc1, self.fc2, self.drop = nn.Linear(8, 300), nn.Linear(300, 300), nn.Dropout()
        self.out, self.layer_norm = nn.Linear(300, 5), nn.LayerNorm(5)
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, x: Tensor, shift: float = 1.0) -> dict[str, Tensor]:
        x = self.pool(torch.relu(self.norm(self.stem(x))))
        x = torch.cat([F.gelu(self.a(x)), self.b(x)[:, ::2, ...]], 1)[:, :8]
        y = self.fc2(torch.relu(self.fc1(x.mean((2, 3)))))
        return {
            "logits": self.layer_norm(self.out(self.drop(y))) * self.scale + shift,
            "features": x.flatten(1),
        }


def compiled(model: nn.Module, sparsity: float = 0.8) -> so.kernels.Engine:
    return so.compile_inference(model, so.sparsify(model, sparsity, distribution="uniform"))


def test_a_loaded_engine_gives_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = CifarResNet(8, 10, width=0.5, shortcut="projection")
    engine = compiled(model)
    engine.save(tmp_path / "engine.safetensors")
    loaded = so.load_engine(tmp_path / "engine.safetensors")
    for batch in (1, 5):
        x = torch.randn(batch, 3, 17, 20)
        assert torch.equal(loaded(x), engine(x))
    assert [(each.name, each.reason) for each in loaded.layers] == [
        (each.name, each.reason) for each in engine.layers
    ]
    loaded.save(tmp_path / "again.safetensors")
    assert torch.equal(so.load_engine(tmp_path / "again.safetensors")(x), engine(x))


def test_dense_operations_are_saved_with_the_sparse_ones(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Mixed()
    engine = compiled(model)
    assert any(each.reason is None for each in engine.layers)
    engine.save(tmp_path / "engine.safetensors")
    loaded, x = so.load_engine(tmp_path / "engine.safetensors"), torch.randn(3, 3, 20, 24)
    with torch.no_grad():
        expected = model.eval()(x, 0.5)
    for found in (engine(x, 0.5), loaded(x, shift=0.5)):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    assert torch.equal(loaded(x)["logits"], engine(x)["logits"])
    with pytest.raises(TypeError, match="takes x, shift"):
        loaded(x, 1.0, 2.0)
    with pytest.raises(TypeError, match="'x' is missing"):
        loaded()


@pytest.mark.slow
def test_a_loaded_engine_needs_no_code_of_the_model(tmp_path: Path) -> None:
    engine = compiled(CifarResNet(8, 10, width=0.5))
    engine.save(tmp_path / "engine.safetensors")
    code = (
        "import sys, torch, sparseopt as so\n"
        f"print(so.load_engine({str(tmp_path / 'engine.safetensors')!r})(torch.zeros(2, 3, 9, 9)).shape)\n"
        "assert not any(name.startswith('sparseopt.lab') for name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "torch.Size([2, 10])"


class Python(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


def test_sums_in_place_are_saved(tmp_path: Path) -> None:
    """Around a layer that stays dense, as in networks whose activations are modules of their own."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.dense = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)

        def forward(self, x: Tensor) -> Tensor:
            short = F.gelu(self.conv(x))
            x = self.dense(short)
            x += short
            return F.silu(x)

    torch.manual_seed(0)
    model = Block().eval()
    engine = so.compile_inference(model, so.sparsify(model, 0.7, distribution="uniform"))
    x = torch.randn(2, 3, 8, 8)
    engine.save(tmp_path / "engine.safetensors")
    assert torch.equal(so.load_engine(tmp_path / "engine.safetensors")(x), engine(x))
    with torch.no_grad():
        torch.testing.assert_close(engine(x), model(x))


def test_what_a_file_cannot_hold_is_said(tmp_path: Path) -> None:
    lossy = nn.Sequential(nn.Linear(300, 300), nn.RReLU())
    with pytest.raises(ValueError, match="'1', a RReLU"):
        compiled(lossy).save(tmp_path / "engine")
    with pytest.raises(ValueError, match="bessel_j0"):
        compiled(nn.Sequential(nn.Linear(300, 300), Python())).save(tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


def rewritten(path: Path, change: Callable[[list[Any], dict[str, Tensor]], None]) -> Path:
    """The file with its operations or tensors changed."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    operations = json.loads(metadata["operations"])
    change(operations, tensors)
    metadata["operations"] = json.dumps(operations)
    save_file(
        {name: each.contiguous() for name, each in tensors.items()}, path.with_suffix(".changed"), metadata
    )
    return path.with_suffix(".changed")


def region(operations: list[Any]) -> dict[str, Any]:
    return next(each["region"] for each in operations if "region" in each)


HOSTILE: dict[str, Callable[[list[Any], dict[str, Tensor]], None]] = {
    "code": lambda ops, tensors: ops.insert(1, {"call": "os.system", "args": ["true"], "kwargs": {}}),
    "later value": lambda ops, tensors: ops[1]["args"].__setitem__(0, {"node": 7}),
    "negative value": lambda ops, tensors: ops[1]["args"].__setitem__(0, {"node": -1}),
    "input beyond": lambda ops, tensors: region(ops)["steps"][1].update(input=99),
    "own output as input": lambda ops, tensors: region(ops)["steps"][0].update(input=1),
    "shortcut beyond": lambda ops, tensors: region(ops)["steps"][2].update(shortcut=-1),
    "stride": lambda ops, tensors: region(ops)["steps"][0].update(stride=3),
    "padding": lambda ops, tensors: region(ops)["steps"][0].update(padding=[50, 50]),
    "offset": lambda ops, tensors: region(ops)["steps"][2].update(shortcut_offset=1),
    "shape": lambda ops, tensors: region(ops)["steps"][0]["weight"].update(shape=[8, 3, 5, 5]),
    "huge shape": lambda ops, tensors: region(ops)["steps"][0]["weight"].update(shape=[2**20, 2**20, 3, 3]),
    "short values": lambda ops, tensors: tensors.update(
        {region(ops)["steps"][0]["weight"]["values"]: torch.zeros(1)}
    ),
    "short bias": lambda ops, tensors: tensors.update({region(ops)["steps"][0]["bias"]: torch.zeros(1)}),
    "wrong type": lambda ops, tensors: tensors.update(
        {region(ops)["steps"][0]["bias"]: torch.zeros(8, dtype=torch.int32)}
    ),
    "no output": lambda ops, tensors: ops.pop(),
    "end beyond": lambda ops, tensors: region(ops)["ends"][0].update(value=1000),
    "channels": lambda ops, tensors: region(ops).update(inputs=[5]),
    "no steps": lambda ops, tensors: region(ops).update(steps=[]),
}


POOLED: dict[str, dict[str, Any]] = {
    "pooled input beyond": {"input": 9},
    "pooled own output": {"input": 2},
    "pooled image": {"input": 0},
    "pooled stride": {"stride": 3},
    "pooled padding": {"padding": [2, 2]},
    "pooled window": {"pool": [0, 3]},
    "pooled axes": {"pool": [3]},
}


def pooled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 4, 3))


@pytest.mark.parametrize("what", POOLED)
def test_hostile_poolings_are_refused(tmp_path: Path, what: str) -> None:
    compiled(pooled()).save(tmp_path / "engine.safetensors")
    path = rewritten(
        tmp_path / "engine.safetensors", lambda ops, tensors: region(ops)["steps"][1].update(POOLED[what])
    )
    with pytest.raises(ValueError, match="not an engine"):
        so.load_engine(path)
    negative = rewritten(
        tmp_path / "engine.safetensors", lambda ops, tensors: region(ops)["steps"][0].update(relu=False)
    )
    with pytest.raises(ValueError, match="may be negative"):
        so.load_engine(negative)


def test_poolings_are_saved_with_their_region(tmp_path: Path) -> None:
    torch.manual_seed(0)
    engine = compiled(pooled())
    assert len(engine.pieces()) == 1
    engine.save(tmp_path / "engine.safetensors")
    loaded, x = so.load_engine(tmp_path / "engine.safetensors"), torch.randn(5, 3, 28, 28)
    assert torch.equal(loaded(x), engine(x))


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, what: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), Block())
    compiled(model).save(tmp_path / "engine.safetensors")
    path = rewritten(tmp_path / "engine.safetensors", HOSTILE[what])
    with pytest.raises(ValueError, match="not an engine"):
        so.load_engine(path)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.b(torch.relu(self.a(x))) + x)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "engine"
    path.write_bytes(b"no engine")
    with pytest.raises(ValueError, match="is not an engine"):
        so.load_engine(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"no engine.*None.*so\.load"):
        so.load_engine(path)


def test_random_changes_are_refused_or_run(tmp_path: Path) -> None:
    """Whatever one number or word of the program is changed to, there is a result or an exception of Python."""
    torch.manual_seed(0)
    compiled(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), Block())).save(
        tmp_path / "engine.safetensors"
    )
    generator = random.Random(0)
    x = torch.randn(2, 3, 9, 9)

    def change(operations: list[Any], tensors: dict[str, Tensor]) -> None:
        place, key = generator.choice(list(places(operations)))
        place[key] = generator.choice(
            [0, 1, -1, 2, 3, 7, 1000, 2**40, None, True, "x", [], {}, 0.5, {"node": 0}]
        )

    for _ in range(150):
        path = rewritten(tmp_path / "engine.safetensors", change)
        with contextlib.suppress(ValueError, TypeError, RuntimeError, MemoryError, IndexError):
            so.load_engine(path)(x)
