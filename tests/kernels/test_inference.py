"""Frozen engines give what the model in evaluation mode gives."""

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional as F

import sparseopt as so
from sparseopt.kernels.frozen import chain, dense, region
from sparseopt.kernels.native.measurements import Measurements
from sparseopt.lab.models.resnet_cifar import CifarResNet


def trained(model: nn.Module, x: Tensor) -> nn.Module:
    """Running statistics and batch norm parameters that are not those of a fresh model."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(x + torch.randn_like(x))
    return model


def agree(engine: so.kernels.Engine, model: nn.Module, x: Tensor) -> bool:
    with torch.no_grad():
        exact = copy.deepcopy(model).double().eval()(x.double())
    return bool((engine(x).double() - exact).abs().max() <= 2e-6 * exact.abs().max().clamp_min(1))


@pytest.mark.parametrize("shortcut", ["padding", "projection"])
@pytest.mark.parametrize("batch", [1, 2, 3, 7, 16, 33])
@pytest.mark.parametrize("size", [32, 17])
def test_residual_networks_of_any_batch_and_image_size(shortcut: str, batch: int, size: int) -> None:
    torch.manual_seed(0)
    model = CifarResNet(8, 10, width=0.5, shortcut=shortcut)  # pyright: ignore[reportArgumentType]
    topology = so.sparsify(model, 0.8)
    trained(model, torch.randn(16, 3, size, size))
    engine = so.compile_inference(model, topology)
    assert agree(engine, model, torch.randn(batch, 3, size, size))
    assert agree(engine, model, torch.randn(batch, 3, size + 4, size))


def test_several_outputs_biases_and_wide_images() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 5, stride=2, padding=2)
            self.a, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
            self.b = nn.Conv2d(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.stem(x))
            y = self.norm(self.a(x)) + x
            return torch.cat([y, torch.relu(y + self.b(y)), F.max_pool2d(x, 3, 1, 1)], 1)

    torch.manual_seed(0)
    model = Branches()
    topology = so.sparsify(model, 0.7)
    trained(model, torch.randn(4, 3, 12, 75))
    engine = so.compile_inference(model, topology)
    for batch in (1, 9):
        assert agree(engine, model, torch.randn(batch, 3, 12, 75))


def test_large_linear_layers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 10))
    engine = so.compile_inference(model, so.sparsify(model, 0.9))
    assert agree(engine, model, torch.randn(5, 3, 10, 10))


def test_the_engine_is_frozen() -> None:
    torch.manual_seed(0)
    model = CifarResNet(8, 10, width=0.5)
    engine = so.compile_inference(model, so.sparsify(model, 0.8))
    x = torch.randn(2, 3, 16, 16)
    before = engine(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(engine(x), before)
    assert model.training


def test_the_network_is_found_inside_what_is_put_around_it() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).eval()
    topology, x = so.sparsify(model, 0.9), torch.randn(4, 256)
    for wrapped in (nn.DataParallel(model), torch.compile(nn.DataParallel(model), backend="eager")):
        assert isinstance(wrapped, nn.Module)
        engine = so.compile_inference(wrapped, topology)
        assert "2 of 2 layers on sparse kernels" in engine.summary()
        torch.testing.assert_close(engine(x), model(x))


def test_batch_norm_without_running_statistics_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False)).eval()
    engine = so.compile_inference(model, so.sparsify(model, 0.8))
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(engine(x), model(x))
    assert "dense: a batch norm behind it has no running statistics" in engine.summary()


@pytest.mark.parametrize("batch", [1, 9])
def test_classifiers_behind_the_mean(batch: int) -> None:
    """One reads a flattened mean, two a mean of their own, and one a mean that somebody else reads too."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.pool = nn.Conv2d(3, 12, 3, padding=1), nn.AdaptiveAvgPool2d(1)
            self.a, self.b, self.c = nn.Linear(12, 5), nn.Linear(12, 7, bias=False), nn.Linear(12, 3)
            self.d = nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.conv(x))
            mean = x.mean((2, 3))
            own = [self.a(torch.flatten(self.pool(x), 1)), self.b(x.mean((2, 3))), self.c(x.mean((-1, -2)))]
            return torch.cat([*own, self.d(mean), mean], 1)

    torch.manual_seed(0)
    model = Heads()
    engine = so.compile_inference(model, so.sparsify(model, 0.7, distribution="uniform"))
    assert agree(engine, model, torch.randn(batch, 3, 9, 9))
    assert isinstance(engine.program, GraphModule)
    assert [node.target for node in engine.program.graph.nodes if node.op == "call_module"][1:] == ["d"]


def test_engines_can_be_copied_and_shared_by_threads() -> None:
    torch.manual_seed(0)
    model = CifarResNet(8, 10, width=0.5)
    engine = so.compile_inference(model, so.sparsify(model, 0.8))
    images = [torch.randn(1, 3, 16, 16) for _ in range(20)]
    expected = [engine(image) for image in images]
    assert torch.equal(copy.deepcopy(engine)(images[0]), expected[0])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(engine, images))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [
        ((3, 9), 3, 1, 1),
        ((1, 5), 1, 1, 0),
        ((40, 6), 7, 2, 3),
        ((13, 6), 5, 1, 0),
        ((9, 4), 2, 2, 0),
        ((5, 5), 5, 1, 4),
    ],
)
def test_bands_of_any_height_and_kernel(
    size: tuple[int, int], kernel: int, stride: int, padding: int
) -> None:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 9, kernel, stride, padding)
    model = nn.Sequential(first, nn.ReLU(), nn.Conv2d(9, 9, 1), nn.ReLU(), nn.Conv2d(9, 4, 3, padding=1))
    engine = so.compile_inference(model, so.sparsify(model, 0.6, distribution="uniform"))
    for batch in (1, 2, 5, 16):
        assert agree(engine, model, torch.randn(batch, 3, *size))


class Pooled(nn.Module):
    """Max poolings of several windows between convolutions; the first reads what no ReLU has made."""

    def __init__(self, window: tuple[int, int, int]) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(size, 8, 3, padding=1) for size in (3, 8, 8))
        self.early, self.pool = nn.MaxPool2d(2), nn.MaxPool2d(*window)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(self.early(self.first(x))))
        return self.third(self.pool(x)).mean((2, 3))


@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 2, 2), (3, 3, 0)])
@pytest.mark.parametrize("size", [(32, 32), (37, 41), (14, 70)])
@pytest.mark.parametrize("batch", [1, 9])
def test_max_poolings_behind_a_relu_are_part_of_a_region(
    window: tuple[int, int, int], size: tuple[int, int], batch: int
) -> None:
    torch.manual_seed(0)
    model = Pooled(window)
    engine = so.compile_inference(model, so.sparsify(model, 0.6, distribution="uniform"))
    assert len(engine.pieces()) == (3 if window[1] == 3 else 2)
    x = torch.randn(batch, 3, *size)
    assert agree(engine, model, x)
    x[0, 0, 5, 5] = float("nan")
    with torch.no_grad():
        assert torch.equal(engine(x).isnan(), model(x).isnan())


def test_a_max_pooling_that_others_see_stays_where_it_is() -> None:
    class Seen(Pooled):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.second(self.early(self.first(x))))
            y = self.pool(x)
            return self.third(y).mean((2, 3)) + y.mean((2, 3)) + x.mean((2, 3))

    torch.manual_seed(0)
    model = Seen((2, 2, 0))
    engine = so.compile_inference(model, so.sparsify(model, 0.6, distribution="uniform"))
    assert len(engine.pieces()) == 3
    assert agree(engine, model, torch.randn(3, 3, 24, 24))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [(32, 32), (37, 41), (9, 70)])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_any_number_of_threads_gives_the_same_bits(
    batch: int, size: tuple[int, int], threads: Callable[[int], None]
) -> None:
    """Threads share the samples, or where these are too few, the columns or the channels of every layer."""
    torch.manual_seed(0)
    model = CifarResNet(8, 10, width=2)
    topology = so.sparsify(model, 0.5)
    engine = so.compile_inference(trained(model, torch.randn(4, 3, *size)), topology)
    x = torch.randn(batch, 3, *size)
    outputs = []
    for number in (1, 2, 3, 7):
        threads(number)
        outputs.append(engine(x))
    assert agree(engine, model, x)
    assert all(torch.equal(each, outputs[0]) for each in outputs)


def test_the_weights_count_and_not_the_masks() -> None:
    """Weights of another checkpoint, an averaged model, another model's topology: the engine is `model.eval()`."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 16)
    model, other = CifarResNet(8, 10, width=0.5), CifarResNet(8, 10, width=0.5)
    topology, another = so.sparsify(model, 0.8, seed=0), so.sparsify(other, 0.8, seed=1)
    trained(model, x)
    trained(other, x)
    assert agree(so.compile_inference(model, another), model, x)
    model.load_state_dict(other.state_dict())
    assert agree(so.compile_inference(model, topology), model, x)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    model.load_state_dict(CifarResNet(8, 10, width=0.5).state_dict())
    averaged.update_parameters(model)
    assert agree(so.compile_inference(averaged.module, topology), averaged.module, x)


def test_linear_weights_count_whatever_their_layer_is_called() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 10))
    topology = so.sparsify(model, 0.9)
    engine = so.compile_inference(model[1], topology)
    assert [each.reason for each in engine.layers] == [None]
    assert agree(engine, model[1], torch.randn(5, 300))
    model[1].load_state_dict(nn.Linear(300, 400).state_dict())
    assert agree(so.compile_inference(model, topology), model, torch.randn(5, 3, 10, 10))


def test_parametrized_weights_are_frozen_as_they_are() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 10))
    topology = so.sparsify(model, 0.9)
    nn.utils.parametrizations.weight_norm(model[0])
    engine = so.compile_inference(model, topology)
    assert [each.reason for each in engine.layers] == [None, None]
    assert agree(engine, model, torch.randn(5, 300))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_refused_before_the_first_call(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 10))
    topology = so.sparsify(model, 0.9)
    with pytest.raises(so.kernels.Unsupported, match=rf"'0\.weight' is {dtype}"):
        so.compile_inference(model.to(dtype), topology)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own import
def test_a_compiled_model_is_that_inside() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 10))
    topology = so.sparsify(model, 0.9)
    engine = so.compile_inference(torch.compile(model), topology)  # pyright: ignore[reportArgumentType]
    assert agree(engine, model, torch.randn(5, 300))


def test_every_layer_is_listed_with_how_it_runs() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.grouped = nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3, groups=2)
            self.twice, self.full = nn.Linear(8, 8), nn.Conv2d(8, 8, 1)
            self.lstm, self.unused = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.full(F.gelu(self.grouped(F.gelu(self.conv(x)))))
            return self.twice(self.twice(self.lstm(x.flatten(2).transpose(1, 2))[0]))

    model = Net()
    engine = so.compile_inference(model, so.sparsify(model, 0.9, distribution="uniform", include=["conv*"]))
    reasons = {each.name: each.reason for each in engine.layers}
    assert set(reasons) == {"conv", "grouped", "twice", "full", "lstm", "unused"}
    assert [name for name, reason in reasons.items() if reason is None] == ["conv"]
    expected = {
        "grouped": "groups=2",
        "twice": "2 times",
        "full": "0% zeros",
        "lstm": "LSTM",
        "unused": "call",
    }
    assert all(words in str(reasons[name]) for name, words in expected.items())
    assert repr(engine) == engine.summary()
    assert all(name in engine.summary() for name in reasons)


def test_engines_are_not_pickled(tmp_path: Path) -> None:
    model = nn.Conv2d(3, 8, 3)
    engine = so.compile_inference(model, so.sparsify(model, 0.8))
    with pytest.raises(TypeError, match="Engine cannot be pickled"):
        torch.save(engine, tmp_path / "engine.pt")


class Branching(nn.Module):
    """What torch.fx cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(300, 400), nn.Linear(400, 300), nn.Linear(300, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(torch.relu(self.a(x)))
        return self.c(x if bool(x.sum() > 0) else -x)


def test_linear_layers_of_a_model_that_cannot_be_traced() -> None:
    torch.manual_seed(0)
    model = Branching()
    engine = so.compile_inference(model, so.sparsify(model, 0.9, distribution="uniform"))
    assert {each.name: each.reason is None for each in engine.layers} == {"a": True, "b": True, "c": False}
    for _ in range(4):
        assert agree(engine, model, torch.randn(5, 300))
    with pytest.raises(ValueError, match=r"cannot be saved.*control flow"):
        engine.save("nowhere")
    why = {each.name: each.reason for each in engine.layers}
    assert "65,536 weights" in str(why["c"])


def test_a_model_that_cannot_be_traced_and_has_no_sparse_layer() -> None:
    torch.manual_seed(0)
    model = Branching()
    engine = so.compile_inference(model)
    assert agree(engine, model, torch.randn(5, 300))
    assert all("zeros" in str(each.reason) for each in engine.layers if each.name in "ab")


def test_summaries_say_how_and_how_fast() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 300))
    engine = so.compile_inference(model, so.sparsify(model, 0.9, distribution="uniform"))
    assert " ms" not in engine.summary()
    engine(torch.randn(2, 3, 8, 8))
    lines = engine.summary().splitlines()
    assert all(" ms" in line for line in lines if line.split()[0] in "03")


@pytest.mark.parametrize("batch", [1, 4])
def test_what_does_not_pay_runs_dense(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that take forever, so to speak: torch's results then, and the summary says so."""
    torch.manual_seed(0)
    model = Heavy()
    engine = so.compile_inference(model, so.sparsify(model, 0.8, distribution="uniform"))
    times = iter(range(1000, 0, -1))
    monkeypatch.setattr(dense, "shortest", lambda run: float(next(times)))
    monkeypatch.setattr(region, "FASTEST", 1e30)
    monkeypatch.setattr(chain, "shortest", lambda run, x: float(next(times)))
    monkeypatch.setattr(chain, "measurements", lambda: Measurements(None, ""))
    x = torch.randn(batch, 3, 12, 12)
    assert agree(engine, model, x)
    assert engine.summary().count("dense") == len(engine.layers)
    assert torch.equal(engine(x), engine(x))


class Heavy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.p = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, 2, 1),
            nn.Conv2d(8, 8, 1, 2),
        )
        self.fc1, self.fc2 = nn.Linear(8 * 36, 400), nn.Linear(400, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        x = torch.relu(self.b(x) + self.p(x))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def test_images_of_many_sizes() -> None:
    """More than are measured, and than are kept."""
    torch.manual_seed(0)
    model = CifarResNet(8, 10, width=0.5)
    topology = so.sparsify(model, 0.8)
    engine = so.compile_inference(trained(model, torch.randn(4, 3, 16, 16)), topology)
    sizes = [(size, 50 - size) for size in range(8, 42, 2)]
    for size in sizes + sizes[::-1]:
        assert agree(engine, model, torch.randn(2, 3, *size))


@pytest.mark.slow
def test_threads_call_one_engine_with_inputs_of_different_sizes(threads: Callable[[int], None]) -> None:
    """Every call has memory of its own, whichever network and thread had it before."""
    torch.manual_seed(0)
    model = Heavy()
    model.fc1 = nn.LazyLinear(400)
    images = [torch.randn(batch, 3, 12, 12) for batch in (1, 3, 8, 17)]
    wide = [torch.randn(batch, 3, 9 + batch, 30) for batch in (1, 3, 8, 17)]
    model(images[0])
    topology = so.sparsify(model, 0.8, distribution="uniform")
    engine = so.compile_inference(model, topology)
    convolutions = so.compile_inference(nn.Sequential(model.a, nn.ReLU(), model.b))
    calls = [(engine, each) for each in images] + [(convolutions, each) for each in images + wide]
    threads(2)
    expected = [run(x) for run, x in calls]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            found = pool.map(lambda call: call[0](call[1]), calls)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_compiled_function_calls_an_engine_as_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10))
    engine = so.compile_inference(model, so.sparsify(model, 0.9))
    x = torch.randn(3, 64)
    compiled = torch.compile(lambda x: engine(x + 1) * 2, backend="eager")
    assert torch.equal(compiled(x), engine(x + 1) * 2)
