"""What a user of `accelerate` relies on besides the gradients."""

import copy
import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune

import sparseopt as so
from sparseopt.kernels import accelerated as module
from sparseopt.kernels.acceleration import SparseForward
from sparseopt.kernels.native.build import BuildError
from sparseopt.lab.models.resnet_cifar import CifarResNet

STEPS = 80


def small_resnet(seed: int = 0) -> CifarResNet:
    torch.manual_seed(seed)
    return CifarResNet(8, 10, width=0.5, shortcut="padding")


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    """Noisy copies of ten patterns: something to learn, the same for everyone."""
    generator = torch.Generator().manual_seed(5)
    patterns = torch.randn(10, 3, 12, 12, generator=generator)
    labels = torch.randint(0, 10, (steps, 24), generator=generator)
    noise = torch.randn(steps, 24, 3, 12, 12, generator=generator)
    return [(patterns[y] + 2 * n, y) for y, n in zip(labels, noise, strict=True)]


class Training:
    """A model with its optimizer, trained step by step."""

    def __init__(
        self, *, accelerated: bool, method: so.Method | None = None, storage: Any = "dense", **options: Any
    ) -> None:
        self.model = small_resnet()
        self.topology = so.sparsify(self.model, 0.9, storage=storage)
        base = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        method = method or so.SET(total_steps=STEPS, every=25)
        self.optimizer = so.SparseOpt(base, self.topology, method, **options)
        if accelerated:
            so.accelerate(self.model, self.topology)
            assert isinstance(self.model.forward, SparseForward)

    def step(self, x: Tensor, y: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state(self) -> dict[str, object]:
        return copy.deepcopy({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()})

    def load(self, state: dict[str, object]) -> None:
        self.model.load_state_dict(state["model"])  # pyright: ignore[reportArgumentType]
        self.optimizer.load_state_dict(state["optimizer"])  # pyright: ignore[reportArgumentType]


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


@pytest.mark.slow
def test_steps_from_equal_states_agree_within_rounding() -> None:
    """Whole runs drift apart: rounding decides about ReLUs, and which of two equal weights is dropped. Steps do not."""
    dense, accelerated = Training(accelerated=False), Training(accelerated=True)
    losses = []
    for x, y in batches(STEPS):
        accelerated.load(dense.state())
        losses.append(dense.step(x, y))
        assert accelerated.step(x, y) == pytest.approx(losses[-1], rel=1e-5)
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])  # it learns


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_thread_count_gives_the_same_bits(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a, b = Training(accelerated=True), Training(accelerated=True)
        for x, y in batches(3):
            assert a.step(x, y) == b.step(x, y)
        assert same(a.model, b.model)
    finally:
        torch.set_num_threads(before)


def test_a_resumed_run_is_the_same_run() -> None:
    data = batches(60)
    whole, half = Training(accelerated=True), Training(accelerated=True)
    for x, y in data:
        whole.step(x, y)
    for x, y in data[:31]:
        half.step(x, y)
    resumed = Training(accelerated=True)
    resumed.load(half.state())
    for x, y in data[31:]:
        resumed.step(x, y)
    assert same(whole.model, resumed.model)


def test_rigl_gets_the_dense_gradient_when_it_is_due_and_only_then() -> None:
    run = Training(accelerated=True, method=so.RigL(total_steps=100, every=5))
    dense = []
    for step, (x, y) in enumerate(batches(10), start=1):
        run.step(x, y)
        outside = (
            (parameter.grad != 0) & ~run.topology.masks[name]
            for name, parameter in run.topology.parameters.items()
            if parameter.grad is not None
        )
        if any(bool(each.any()) for each in outside):
            dense.append(step)
    assert dense == [5, 10]


@pytest.mark.parametrize("storage", ["dense", "packed"])
@pytest.mark.parametrize("evaluating", [False, True])
def test_the_dense_gradient_is_that_of_the_dense_network(storage: Any, evaluating: bool) -> None:
    """Convolutions and linear layers, with batch norm in either mode: a frozen one must not keep RigL from growing."""
    grads: list[dict[str, torch.Tensor]] = []
    for accelerated in (False, True):
        run = Training(accelerated=accelerated, method=so.RigL(total_steps=100, every=1), storage=storage)
        run.model.train(not evaluating)
        x, y = batches(1)[0]
        F.cross_entropy(run.model(x), y).backward()
        each = {name: kept.gradient() for name, kept in run.topology.storage.items()}
        grads.append({name: grad for name, grad in each.items() if grad is not None})
    assert grads[0].keys() == grads[1].keys() == run.topology.layers.keys()
    for name, expected in grads[0].items():
        assert int((expected != 0).sum()) > run.topology.active(name)
        torch.testing.assert_close(
            grads[1][name], expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max())
        )


def test_the_paper_s_norm_is_that_of_the_dense_network() -> None:
    norms = []
    for accelerated in (False, True):
        run = Training(accelerated=accelerated, method=so.Static(), max_grad_norm=1.0, clip="paper")
        run.step(*batches(1)[0])
        norms.append(run.optimizer.grad_norm)
    torch.testing.assert_close(norms[0], norms[1], rtol=1e-4, atol=0.0)


def test_state_dict_and_parameters_are_the_models_own() -> None:
    model = small_resnet()
    keys, parameters = list(model.state_dict()), list(model.parameters())
    accelerated = so.accelerate(model, so.sparsify(model, 0.9))
    assert accelerated is model
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


def test_copies_are_ordinary_models() -> None:
    model = small_resnet()
    topology = so.sparsify(model, 0.9)
    dense = copy.deepcopy(model).eval()
    so.accelerate(model, topology)
    x = torch.randn(4, 3, 12, 12)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert not isinstance(other.forward, SparseForward)
        assert torch.equal(other.eval()(x), dense(x))


def test_evaluation_in_shares_and_restore() -> None:
    model = small_resnet()
    topology = so.sparsify(model, 0.9)
    so.accelerate(model, topology)
    for x, _ in batches(3):
        model(x)
    model.eval()
    x = torch.randn(150, 3, 12, 12)
    with torch.no_grad():
        ours = model(x)
        so.kernels.restore(model)
        assert torch.allclose(ours, model(x), atol=1e-5)


def test_mode_dependent_functions_follow_the_mode() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(20, 400), nn.Linear(400, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.dropout(F.relu(self.a(x)), 0.5, self.training))

    torch.manual_seed(0)
    model = Net()
    so.accelerate(model, so.sparsify(model, 0.9))
    x = torch.randn(8, 20)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch's own, at a graph break
@pytest.mark.slow
def test_torch_compile_accepts_the_model() -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 20), nn.Tanh())
    so.accelerate(model, so.sparsify(model, 0.8))
    x = torch.randn(8, 20)
    compiled = torch.compile(model, backend="aot_eager")
    assert torch.allclose(compiled(x), model(x))


def test_under_autocast_the_kernels_compute_in_float32_and_give_what_dense_layers_give() -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 20))
    topology, x = so.sparsify(model, 0.8), torch.randn(8, 20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dense = model(x.bfloat16())
        so.accelerate(model, topology)
        y = model(x.bfloat16())
    assert y.dtype == dense.dtype == torch.bfloat16
    assert torch.equal(y, model(x.bfloat16().float()).bfloat16()), "rounded once, at the end"
    y.sum().backward()


def test_the_default_dtype_of_the_process_does_not_matter() -> None:
    model = small_resnet()
    topology = so.sparsify(model, 0.9)
    x = torch.randn(4, 3, 12, 12)
    expected = copy.deepcopy(model)(x)
    torch.set_default_dtype(torch.float64)
    try:
        so.accelerate(model, topology)
        y = model(x)
        y.sum().backward()
        assert so.compile_inference(model, topology)(x).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.allclose(y, expected, atol=1e-5)


def test_a_second_backward_pass_is_refused() -> None:
    model = small_resnet()
    so.accelerate(model, so.sparsify(model, 0.9))
    loss = model(torch.randn(4, 3, 12, 12)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        loss.backward()


def unchanged(model: nn.Module, topology: so.Topology, caplog: pytest.LogCaptureFixture) -> str:
    """The log line, after seeing that the model was left alone."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert so.accelerate(model, topology) is model
    assert not so.kernels.accelerated_layers(model)
    (record,) = caplog.records
    return record.getMessage()


def test_where_the_kernels_cannot_help_the_model_is_unchanged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    double, half = (nn.Sequential(nn.Linear(4, 4)).to(dtype) for dtype in (torch.float64, torch.float16))
    assert "0.weight is torch.float64" in unchanged(double, so.sparsify(double, 0.5), caplog)
    assert "0.weight is torch.float16" in unchanged(half, so.sparsify(half, 0.5), caplog)
    elsewhere = nn.Sequential(nn.Linear(4, 4))
    topology = so.sparsify(elsewhere, 0.5)
    assert "on meta" in unchanged(elsewhere.to("meta"), topology, caplog)
    dense = nn.Sequential(nn.Linear(4, 4))
    assert "25.0% zeros" in unchanged(dense, so.sparsify(dense, 0.25), caplog)
    other = nn.Conv1d(8, 16, 3)
    assert "not Conv1d" in unchanged(other, so.sparsify(other, 0.5), caplog)
    compiled = torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="eager")
    assert isinstance(compiled, nn.Module)
    assert "torch.compile" in unchanged(compiled, so.sparsify(compiled, 0.5), caplog)

    def no_compiler() -> None:
        raise BuildError("no C++ compiler")

    monkeypatch.setattr(module, "operators", no_compiler)
    model = small_resnet()
    assert "no C++ compiler" in unchanged(model, so.sparsify(model, 0.9), caplog)


def halve(module: nn.Module, given: object, output: Tensor) -> Tensor:
    return output * 0.5


class Half(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 0.5


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "hook": lambda model: model[2].register_forward_hook(halve),
    "module": lambda model: model.__setitem__(4, nn.Linear(30, 7)),
    "one more module": lambda model: model.append(nn.Tanh()),
    "parametrization": lambda model: parametrize.register_parametrization(model[2], "weight", Half()),
    "pruning": lambda model: prune.l1_unstructured(model[2], "weight", 5),
    "mode": lambda model: model[5].eval(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_the_model_count(change: str) -> None:
    torch.manual_seed(0)
    layers = (nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 4), nn.Dropout(0.5))
    model = nn.Sequential(*layers)
    topology = so.sparsify(model, 0.9)
    so.accelerate(model, topology)
    x = torch.randn(6, 20)
    model(x)
    CHANGES[change](model)
    for _ in range(2):
        torch.manual_seed(1)
        ours = model(x)
        torch.manual_seed(1)
        dense = type(model).forward(model, x)
        torch.testing.assert_close(ours, dense)
        gradients = []
        for output in (ours, dense):
            model.zero_grad()
            output.square().sum().backward()
            gradients.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        for name, mine, its in zip(dict(model.named_parameters()), *gradients, strict=True):
            mask = topology.masks.get(name, torch.tensor(True))
            assert (mine is None) == (its is None)
            if mine is not None and its is not None and mask.shape in ((), its.shape):
                torch.testing.assert_close(mine * mask, its * mask, msg=name)


@pytest.mark.parametrize("channels", [1, 5])
def test_images_of_other_channels_are_refused(channels: int) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    topology = so.sparsify(model, 0.9)
    engine = so.compile_inference(model, topology)
    so.accelerate(model, topology)
    for call in (model, engine):
        with pytest.raises(RuntimeError, match=f"3.*{channels}, 9, 9"):
            call(torch.ones(2, channels, 9, 9))
