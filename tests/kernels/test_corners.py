"""What is legal and rare: the kernels give what torch gives, or refuse with a sentence."""

import copy
import gc
import json
import mmap
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparseopt as so
from sparseopt.kernels.frozen.tensorfile import encode
from sparseopt.kernels.native import memory, pattern
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.measurements import Measurements


def linear() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


def convolutions(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(8)] if norm else []
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), *norms, nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))


def inputs(model: nn.Sequential) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(8, 64) if isinstance(model[0], nn.Linear) else torch.randn(8, 4, 6, 6)


@pytest.mark.parametrize("make", [linear, convolutions])
def test_a_penalty_on_gradients_is_refused_and_not_forgotten(make: Callable[[], nn.Sequential]) -> None:
    model = make()
    so.accelerate(model, so.sparsify(model, 0.6), break_even=0.0)
    x = inputs(model).requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    assert gradient.requires_grad
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        gradient.square().sum().backward()
    model(x).sum().backward()  # once is fine
    assert x.grad is not None


@pytest.mark.parametrize("make", [linear, convolutions])
def test_weights_that_move_between_the_passes_are_refused(make: Callable[[], nn.Sequential]) -> None:
    model = make()
    topology = so.sparsify(model, 0.6, storage="packed")
    so.accelerate(model, topology, break_even=0.0)
    x = inputs(model).requires_grad_()
    for moving in ("values", "masks"):
        y = model(x)
        with torch.no_grad():
            if moving == "values":
                for parameter in topology.parameters.values():
                    parameter.mul_(3)
            else:
                topology.load_state_dict(topology.state_dict())
        if moving == "values" or isinstance(model[0], nn.Conv2d):
            with pytest.raises(RuntimeError, match="call backward before step"):
                y.sum().backward()


class Softplus(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x)


def _parametrized(module: nn.Module, name: str) -> None:
    nn.utils.parametrize.register_parametrization(module, name, Softplus())


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (linear, lambda model: _parametrized(model[0], "bias")),
        (convolutions, lambda model: _parametrized(model[0], "bias")),
        (lambda: convolutions(norm=True), lambda model: _parametrized(model[0], "bias")),
        (lambda: convolutions(norm=True), lambda model: _parametrized(model[1], "weight")),
        (lambda: convolutions(norm=True), lambda model: setattr(model[1], "weight", None)),
        (
            lambda: nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8)),
            lambda model: setattr(model[1], "weight", None),
        ),
    ],
)
def test_every_parameter_is_trained(
    make: Callable[[], nn.Sequential], change: Callable[[nn.Sequential], None]
) -> None:
    gradients = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        model = make()
        change(model)
        topology = so.sparsify(model, 0.6)
        if accelerated:
            so.accelerate(model, topology, break_even=0.0)
        model(inputs(model)).square().sum().backward()
        gradients.append({name: each.grad for name, each in model.named_parameters()})
    for name, expected in gradients[0].items():
        found = gradients[1][name]
        assert expected is not None
        assert found is not None, name
        mask = (
            expected != 0
            if name.endswith("weight") and found.dim() > 1
            else torch.ones_like(expected, dtype=torch.bool)
        )
        mask &= found != 0 if name.endswith("weight") and found.dim() > 1 else mask
        torch.testing.assert_close(found[mask], expected[mask], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_name_with_dense_gradients(padding: str) -> None:
    found = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=padding), nn.BatchNorm2d(8), nn.ReLU())
        topology = so.sparsify(model, 0.8)
        if accelerated:
            so.accelerate(model, topology, break_even=0.0)
        topology.dense_grads.wanted = True
        model(torch.randn(4, 4, 6, 6)).square().sum().backward()
        found.append(topology.parameters["0.weight"].grad)
    assert found[0] is not None
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(input=torch.relu(input=self.conv(x)), kernel_size=2)


def test_functions_called_by_keyword() -> None:
    model, x = ByKeyword(), torch.randn(2, 3, 8, 8)
    topology = so.sparsify(model, 0.8)
    expected = model(x)
    torch.testing.assert_close(
        so.compile_inference(model, topology)(x), expected.detach(), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        so.accelerate(model, topology, break_even=0.0)(x), expected, rtol=1e-4, atol=1e-5
    )


def test_nothing_is_drawn_from_the_users_generator() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3))
    topology = so.sparsify(model, 0.8)
    x = torch.randn(2, 3, 8, 8)
    before = torch.get_rng_state()
    network = so.accelerate(model, topology, break_even=0.0)
    network(x)
    network.eval()
    network(x)
    so.compile_inference(model, topology)(x)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loss_that_is_kept_keeps_no_activations() -> None:
    model = linear()
    network = so.accelerate(model, so.sparsify(model, 0.6), break_even=0.0)
    x = torch.randn(256, 64)
    losses = []

    def held() -> int:
        gc.collect()
        return sum(
            each.numel() for each in gc.get_objects() if type(each) is Tensor and each.numel() >= 256 * 64
        )

    for _ in range(3):
        losses.append(network(x).square().mean())
        losses[-1].backward()
    before = held()
    for _ in range(5):
        losses.append(network(x).square().mean())
        losses[-1].backward()
    assert held() <= before
    loss = network(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        loss.backward()


class Towers(nn.Module):
    """Two regions of which a batch has as many images as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(3, 8, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.a(x).mean((2, 3)) @ self.b(y).mean((2, 3)).t()


class Spread(nn.Module):
    """A sum in which torch spreads the smaller image."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.a(x) + self.b(x))


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (Towers(), (torch.randn(2, 3, 8, 8), torch.randn(5, 3, 8, 8))),
        (Spread(), (torch.randn(2, 3, 8, 8),)),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), (torch.randn(3, 8, 8),)),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)), (torch.randn(3, 8, 8),)),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)), (torch.randn(2, 3, 8, 8),)),
        (
            nn.Sequential(nn.Conv2d(3, 1, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Linear(1, 5)),
            (torch.randn(2, 3, 8, 8),),
        ),
    ],
)
def test_inputs_that_torch_takes_are_taken(
    model: nn.Module, given: tuple[Tensor, ...], tmp_path: Path
) -> None:
    topology = so.sparsify(model, 0.6)
    expected = model(*given).detach()
    engine = so.compile_inference(model, topology)
    torch.testing.assert_close(engine(*given), expected, rtol=1e-4, atol=1e-5)
    engine.save(tmp_path / "engine")
    torch.testing.assert_close(so.load_engine(tmp_path / "engine")(*given), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        so.accelerate(model, topology, break_even=0.0)(*given).detach(), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("how", ["hook", "forward"])
def test_poolings_that_do_more_are_left_alone(how: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2))
    if how == "hook":
        model[1].register_forward_pre_hook(lambda _, given: (given[0] * 2,))
    else:
        setattr(model[1], "forward", lambda x: x * 3)  # noqa: B010 - not a method of its class
    topology, x = so.sparsify(model, 0.8), torch.randn(2, 3, 8, 8)
    expected = model(x).detach()
    torch.testing.assert_close(so.compile_inference(model, topology)(x), expected, rtol=1e-4, atol=1e-5)


def test_measurements_from_several_threads(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    known = Measurements(tmp_path, "layers.json")

    def work(number: int) -> None:
        for index in range(200):
            known.put(f"{number}-{index}", (1, 2), 3.0)
            known.keep()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert Measurements(tmp_path, "layers.json").get("2-199") == ((1, 2), 3.0)


def test_running_statistics_without_a_count_of_batches() -> None:
    found = []
    for accelerated in (False, True):
        model = convolutions(norm=True)
        setattr(model[1], "num_batches_tracked", None)  # noqa: B010 - torch takes it
        topology = so.sparsify(model, 0.6)
        if accelerated:
            so.accelerate(model, topology, break_even=0.0)
        model(inputs(model))
        found.append(model[1].running_mean)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own
def test_derivatives_forward_are_torchs() -> None:
    model = convolutions()
    x, direction = inputs(model), torch.randn(8, 4, 6, 6)
    topology = so.sparsify(model, 0.6)
    tangents = []
    for network in (model, so.accelerate(model, topology, break_even=0.0)):
        with torch.no_grad(), torch.autograd.forward_ad.dual_level():
            y = network(torch.autograd.forward_ad.make_dual(x, direction))
            tangents.append(torch.autograd.forward_ad.unpack_dual(y).tangent)
    assert tangents[1] is not None
    torch.testing.assert_close(tangents[1], tangents[0])


def test_infinities() -> None:
    x = torch.zeros(4, 512)
    x[0, 0] = torch.inf
    model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.GELU(), nn.Linear(512, 512, bias=False))
    masks = {f"{at}.weight": torch.eye(512) > 0 for at in (0, 2)}
    with torch.no_grad():
        for layer in (model[0], model[2]):
            assert isinstance(layer, nn.Linear)
            layer.weight.copy_(torch.eye(512))
    engine = so.compile_inference(model, so.sparsify(model, masks=masks))
    assert "2 of 2 layers on sparse kernels" in str(engine)
    assert engine(x)[0, 0] == torch.inf
    normed = convolutions(norm=True)
    so.accelerate(normed, so.sparsify(normed, 0.6), break_even=0.0)
    images = inputs(normed)
    images[0, :, 0, 0] = torch.inf
    normed(images)
    variance = normed[1].running_var
    assert isinstance(variance, Tensor)
    assert variance.isnan().any()


def _engine_file(path: Path, operations: list[dict[str, Any]], tensors: dict[str, Tensor]) -> Path:
    metadata = {"format": "sparseopt-engine-1", "operations": json.dumps(operations), "notes": "{}"}
    path.write_bytes(encode(tensors, metadata))
    return path


def test_a_file_that_writes_to_its_own_tensors_is_refused(tmp_path: Path) -> None:
    call = {"call": "torch.zeros", "args": [{"list": [4]}], "kwargs": {"out": {"tensor": "b"}}}
    file = _engine_file(
        tmp_path / "engine", [{"input": "x"}, call, {"output": {"node": 1}}], {"b": torch.zeros(4)}
    )
    with pytest.raises(ValueError, match="writes to a tensor"):
        so.load_engine(file)


def test_a_window_beyond_all_memory_is_refused(tmp_path: Path) -> None:
    weight = {"shape": [1, 1, 1, 1], "mask": "m", "values": "v"}
    conv = {
        "name": None,
        "input": 0,
        "weight": weight,
        "bias": "b",
        "stride": 1,
        "padding": [0, 0],
        "relu": True,
        "shortcut": None,
        "shortcut_stride": 1,
        "shortcut_offset": 0,
    }
    pool = {"pool": [1073741810, 2147483646], "input": 1, "padding": [536870905, 1073741823], "stride": 1}
    region = {"inputs": [1], "steps": [conv, pool], "ends": [{"value": 2, "pooled": False, "head": None}]}
    operations = [
        {"input": "x"},
        {"region": region, "args": [{"node": 0}], "kwargs": {}},
        {"output": {"node": 1}},
    ]
    tensors = {"m": torch.ones(1, dtype=torch.uint8), "v": torch.ones(1), "b": torch.zeros(1)}
    with pytest.raises(ValueError, match="is not a number from 1 to"):
        so.load_engine(_engine_file(tmp_path / "engine", operations, tensors))


def constant_channels(layers: int, images: bool) -> nn.Sequential:
    """Channels that are constant over the batch, which batch norm divides by the root of its eps, again and again."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += (
            [nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)]
            if images
            else [nn.Linear(8, 8), nn.BatchNorm1d(8)]
        )
        parts.append(nn.ReLU())
    return nn.Sequential(*parts)


@pytest.mark.parametrize("images", [True, False])
def test_lanes_beyond_the_batch_stay_finite(images: bool) -> None:
    model = constant_channels(20, images)
    topology = so.sparsify(model, 0.5, distribution="uniform")
    so.accelerate(model, topology)
    samples = 2 * operators().lanes() + 1
    x = torch.ones(samples, 8, 3, 3) if images else torch.ones(samples, 8)
    model(x).square().sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in model.parameters())


def test_a_chain_of_a_hundred_layers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(100) for part in (nn.Linear(8, 8), nn.ReLU())))
    dense = copy.deepcopy(model)
    topology = so.sparsify(model, 0.5, distribution="uniform")
    dense.load_state_dict(model.state_dict())
    so.accelerate(model, topology)
    x = torch.randn(3, 8)
    torch.testing.assert_close(model(x), dense(x))


class Deep(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = torch.relu(conv(x) + x)
        return x


@pytest.mark.slow
def test_networks_may_be_deeper_than_pythons_stack() -> None:
    torch.manual_seed(0)
    model = Deep(1100)
    topology = so.sparsify(model, 0.5, distribution="uniform")
    with torch.no_grad():
        for weight in topology.parameters.values():
            weight.mul_(0.01)
    engine = so.compile_inference(model, topology)
    x = torch.rand(2, 4, 2, 2)
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(engine(x), expected)
    so.accelerate(model, topology)
    y = model(x)
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    assert all(weight.grad is not None for weight in topology.parameters.values())


@pytest.mark.slow
def test_an_engine_takes_kernels_that_fit_no_cache() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ReLU()),
        nn.Conv2d(16, 2, 41, padding=20),
    )
    topology = so.sparsify(model, 0.98, distribution="uniform")
    engine = so.compile_inference(model, topology)
    x = torch.randn(1, 3, 128, 128)
    with torch.no_grad():
        torch.testing.assert_close(engine(x), model(x), atol=1e-4, rtol=1e-4)


def test_memory_that_cannot_be_had_leaves_the_kernels_usable() -> None:
    """What a batch-size finder does: a batch that fits, one that does not, and again one that does."""
    code = """
import resource, torch
from torch import nn
import sparseopt as so
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
topology = so.sparsify(model, 0.9)
so.accelerate(model, topology)
x = torch.randn(64, 64)
expected = model(x).detach()
model(x).sum().backward()
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (700 << 20),) * 2)
try:
    model(torch.ones(1, 64).expand(1_000_000, 64)).sum().backward()
except (MemoryError, RuntimeError):
    print("refused")
y = model(x)
y.sum().backward()
assert torch.equal(y, expected)
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["refused", "fine"], done.stderr


def test_a_system_without_huge_pages_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345)
    assert not memory.mapped(1 << 20).any()


def test_offsets_beyond_32_bits_are_refused() -> None:
    at = pattern.geometry(64, 2_200_000, 4, 16)
    last = torch.tensor([63 * 9 + 8])
    with pytest.raises(ValueError, match="offsets"):
        pattern.conv_forward(last, torch.Size([1, 64, 1, 9]), (0, 4), at)
