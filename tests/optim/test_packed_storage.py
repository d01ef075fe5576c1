"""Packed storage: what is trained are the active values alone, and the numbers are those of dense storage.

Both storages are trained side by side, and compared after every step from equal states: where vectors end, torch rounds some
operations another way, and a network may amplify the last bit to anything.
"""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_base import BASES, Base
from torch import Tensor, nn, optim
from torch.nn.utils import parametrize

import sparseopt as so
from sparseopt.topology import dense_grads
from sparseopt.topology.scatter import to_packed
from sparseopt.topology.storage import Packed

Network = tuple[nn.Sequential, so.Topology]

METHODS = {
    "static": so.Static(),
    "set": so.SET(total_steps=60, every=4, drop_fraction=0.5),
    "rigl": so.RigL(total_steps=60, every=4, drop_fraction=0.5),
    "rigl corrected": so.RigL(total_steps=60, every=4, drop_fraction=0.5, grow_from="corrected"),
}
CLOSE: Any = {"rtol": 1e-12, "atol": 1e-15}


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense gradients in blocks of few rows, as those of large layers are."""
    monkeypatch.setattr(dense_grads, "BLOCK", 64)


class Pair:
    """The same training twice: packed, and dense."""

    def __init__(self, build: Callable[..., Network], base: Base = BASES["momentum"], **options: Any) -> None:
        method = options.pop("method", METHODS["set"])
        self.models: list[nn.Sequential] = []
        self.optimizers: list[so.SparseOpt] = []
        for storage in ("packed", "dense"):
            model, topology = build(0.8, distribution="uniform", storage=storage)
            model.double()
            self.models.append(model)
            self.optimizers.append(so.SparseOpt(base(model.parameters()), topology, method, **options))

    def each(self, action: Callable[[nn.Sequential, so.SparseOpt], Any]) -> list[Any]:
        return [action(model, opt) for model, opt in zip(self.models, self.optimizers, strict=True)]

    def train(self, train: Callable[..., None], steps: int, first: int = 1) -> None:
        for step in range(first, first + steps):
            self.each(lambda model, optimizer, at=step: train(model, optimizer, 1, first=at))
            self.assert_same()
            self.equalise()

    def assert_same(self) -> None:
        """Weights, state, masks."""
        packed, dense = self.optimizers
        for name, mask in dense.topology.masks.items():
            assert torch.equal(packed.topology.masks[name], mask)
        torch.testing.assert_close(self.models[0].state_dict(), self.models[1].state_dict(), **CLOSE)
        for mine, its, index in self._parameters():
            assert packed.state.get(mine, {}).keys() == dense.state.get(its, {}).keys()
            for key, value in dense.state.get(its, {}).items():
                expected = value if index is None or value.shape != its.shape else to_packed(value, index)
                torch.testing.assert_close(packed.state[mine][key], expected, **CLOSE)

    @torch.no_grad()
    def equalise(self) -> None:
        packed, dense = self.optimizers
        self.models[0].load_state_dict(self.models[1].state_dict())
        for mine, its, index in self._parameters():
            for key, value in dense.state.get(its, {}).items():
                if isinstance(value, Tensor):
                    if index is not None and value.shape == its.shape:
                        value = to_packed(value, index)
                    packed.state[mine][key].copy_(value)

    def _parameters(self) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Every parameter of both, and of the sparse ones the index."""
        packed, dense = self.optimizers
        found: list[tuple[Tensor, Tensor, Tensor | None]] = []
        for name, storage in packed.topology.storage.items():
            assert isinstance(storage, Packed)
            found.append((storage.parameter, dense.topology.parameters[name], storage.index))
        names = {name for name, _ in self.models[1].named_parameters()} - set(dense.topology.layers)
        its = dict(self.models[1].named_parameters())
        return found + [
            (p, its[name], None) for name, p in self.models[0].named_parameters() if name in names
        ]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("base", BASES)
def test_a_packed_step_is_the_dense_step(
    base: str, method: str, build: Callable[..., Network], train: Callable[..., None]
) -> None:
    Pair(build, BASES[base], method=METHODS[method], correction="global").train(train, 9)


@pytest.mark.parametrize(
    "correction", ["layer", "global", "overall", "unnormalized", "measured", "angular", "none"]
)
@pytest.mark.parametrize("max_grad_norm", [None, 0.1, float("inf")])
@pytest.mark.parametrize("clip", ["active", "paper"])
def test_every_correction_and_clipping(
    correction: Any,
    max_grad_norm: float | None,
    clip: Any,
    build: Callable[..., Network],
    train: Callable[..., None],
) -> None:
    method = METHODS["rigl"]
    pair = Pair(build, method=method, correction=correction, max_grad_norm=max_grad_norm, clip=clip)
    pair.train(train, 6)
    if max_grad_norm is not None:
        ours, reference = (optimizer.grad_norm for optimizer in pair.optimizers)
        torch.testing.assert_close(ours, reference)


@pytest.mark.parametrize("base", ["momentum", "adamw"])
def test_correct_decay(base: str, build: Callable[..., Network], train: Callable[..., None]) -> None:
    Pair(build, BASES[base], correct_decay=True).train(train, 5)


def test_what_is_trained_is_a_row_and_the_object_of_before(build: Callable[..., Network]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.Linear(16, 4))
    before = [layer.weight for layer in model]  # pyright: ignore
    topology = so.sparsify(model, 0.8, storage="packed")
    for weight, (name, parameter) in zip(before, topology.parameters.items(), strict=True):
        assert parameter is weight
        assert parameter.shape == (1, topology.active(name))
        assert parameter.ndim == 2
    optimizer = so.SparseOpt(optim.Adam(model.parameters()), topology, so.RigL(total_steps=10, every=2))
    held = [id(parameter) for parameter in model.parameters()]
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 12)).square().sum().backward()
        optimizer.step()
    assert topology.version
    assert [id(parameter) for parameter in model.parameters()] == held
    for parameter in topology.parameters.values():
        assert all(state.shape in ((), parameter.shape) for state in optimizer.state[parameter].values())


@pytest.mark.parametrize("method", ["set", "rigl"])
def test_a_resumed_run_is_the_same_to_the_bit(
    method: str, build: Callable[..., Network], train: Callable[..., None]
) -> None:
    def start() -> tuple[nn.Sequential, so.SparseOpt]:
        model, topology = build(0.8, distribution="uniform", storage="packed")
        return model, so.SparseOpt(BASES["adamw"](model.parameters()), topology, METHODS[method])

    (whole, its_optimizer), (half, half_optimizer) = start(), start()
    train(whole, its_optimizer, 13)
    train(half, half_optimizer, 6)
    file = io.BytesIO()
    torch.save({"model": half.state_dict(), "optimizer": half_optimizer.state_dict()}, file)
    for model_first in (True, False):
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        resumed, optimizer = start()
        parts = [(resumed, saved["model"]), (optimizer, saved["optimizer"])]
        for part, state in parts if model_first else reversed(parts):
            part.load_state_dict(state)
        train(resumed, optimizer, 7, first=7)
        for mine, its in zip(resumed.parameters(), whole.parameters(), strict=True):
            assert torch.equal(mine, its)


def test_optimizer_state_of_the_other_storage_is_refused(
    build: Callable[..., Network], train: Callable[..., None]
) -> None:
    pair = Pair(build)
    pair.each(lambda model, optimizer: train(model, optimizer, 2))
    states = pair.each(lambda _, optimizer: optimizer.state_dict())
    for optimizer, state in zip(pair.optimizers, reversed(states), strict=True):
        before = copy.deepcopy(optimizer.state_dict())
        with pytest.raises(ValueError, match=r"storage='(dense|packed)'"):
            optimizer.load_state_dict(state)
        torch.testing.assert_close(optimizer.state_dict()["state"], before["state"])


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("zeroed", ["optimizer", "model"])
def test_gradients_of_several_backward_passes(
    set_to_none: bool,
    zeroed: str,
    build: Callable[..., Network],
    loss_of: Callable[[nn.Module, int], Tensor],
) -> None:
    pair = Pair(build, method=METHODS["rigl"])

    def accumulate(model: nn.Sequential, optimizer: so.SparseOpt, step: int) -> None:
        (optimizer if zeroed == "optimizer" else model).zero_grad(set_to_none)
        for part in range(3):
            loss_of(model, 3 * step + part).backward()
        optimizer.step()

    for step in range(6):
        pair.each(lambda model, optimizer, at=step: accumulate(model, optimizer, at))
        pair.assert_same()
        pair.equalise()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_pass_whose_gradients_are_thrown_away_counts_for_nothing(
    compiled: bool, build: Callable[..., Network], loss_of: Callable[[nn.Module, int], Tensor]
) -> None:
    pair = Pair(build, method=METHODS["rigl"])
    forward: list[Any] = [
        torch.compile(each, backend="aot_eager") if compiled else each for each in pair.models
    ]

    def step(model: nn.Sequential, optimizer: so.SparseOpt, at: int) -> None:
        network = forward[pair.models.index(model)]
        (loss_of(network, 100 + at) * 1e3).backward()
        model.zero_grad()
        loss_of(network, at).backward()
        optimizer.step()
        model.zero_grad()

    for at in range(1, 6):
        pair.each(lambda model, optimizer, at=at: step(model, optimizer, at))
        pair.assert_same()
        pair.equalise()


def test_a_closure_that_is_called_again(
    build: Callable[..., Network], loss_of: Callable[[nn.Module, int], Tensor]
) -> None:
    pair = Pair(build, method=METHODS["rigl"], max_grad_norm=0.5, clip="paper")

    def step(model: nn.Sequential, optimizer: so.SparseOpt, at: int) -> float:
        def closure() -> float:
            optimizer.zero_grad()
            loss = loss_of(model, at)
            loss.backward()
            return loss.item()

        return optimizer.step(closure)

    for at in range(1, 6):
        ours, reference = pair.each(lambda model, optimizer, at=at: step(model, optimizer, at))
        assert ours == pytest.approx(reference)
        pair.assert_same()
        pair.equalise()


def test_users_clip_what_the_step_will_use(
    build: Callable[..., Network], loss_of: Callable[[nn.Module, int], Tensor]
) -> None:
    """Of both storages, at all steps but those that read the dense gradient."""
    pair = Pair(build, method=METHODS["rigl"])

    def clipped(model: nn.Sequential, optimizer: so.SparseOpt, step: int) -> Tensor:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        return nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    for step in range(1, 7):
        dense = pair.optimizers[1].topology.dense_grads.wanted
        norms = pair.each(lambda model, optimizer, at=step: clipped(model, optimizer, at))
        assert dense == (step == 4)
        assert torch.isclose(*norms, rtol=1e-12) != dense
        pair.each(lambda _, optimizer: optimizer.step())
        pair.assert_same()
        pair.equalise()


@pytest.mark.parametrize("clip", ["active", "paper"])
def test_a_gradient_scaler(
    clip: Any, build: Callable[..., Network], loss_of: Callable[[nn.Module, int], Tensor]
) -> None:
    """Gradients are divided by the scale before the step; at the third step they overflow and it is left out."""
    pair = Pair(build, method=METHODS["rigl"], max_grad_norm=0.1, clip=clip)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in pair.models]
    for step in range(1, 8):
        for model, optimizer, scaler in zip(pair.models, pair.optimizers, scalers, strict=True):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step) * (1e308 if step == 3 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
        pair.assert_same()
        pair.equalise()
    assert [optimizer.steps for optimizer in pair.optimizers] == [6, 6]


def test_a_scheduler(build: Callable[..., Network], train: Callable[..., None]) -> None:
    pair = Pair(build)
    schedulers = [optim.lr_scheduler.StepLR(optimizer, 1, 0.5) for optimizer in pair.optimizers]
    for step in range(1, 6):
        pair.train(train, 1, first=step)
        for scheduler in schedulers:
            scheduler.step()


def test_a_copy_of_model_and_optimizer_trains_on_as_the_original(
    build: Callable[..., Network], train: Callable[..., None]
) -> None:
    model, topology = build(0.8, distribution="uniform", storage="packed")
    optimizer = so.SparseOpt(BASES["adam"](model.parameters()), topology, METHODS["rigl"])
    train(model, optimizer, 5)
    copied, its_optimizer = copy.deepcopy((model, optimizer))
    for step in range(6, 12):
        train(model, optimizer, 1, first=step)
        train(copied, its_optimizer, 1, first=step)
    for mine, its in zip(copied.parameters(), model.parameters(), strict=True):
        assert mine is not its
        assert torch.equal(mine, its)
    best = copy.deepcopy(model)
    before = copy.deepcopy(best.state_dict())
    train(model, optimizer, 5, first=12)
    torch.testing.assert_close(best.state_dict(), before, rtol=0, atol=0)


class ByRows(optim.Optimizer):
    """Divides the gradient of a matrix by the norm of each of its rows."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    scale = p.grad.norm(dim=-1, keepdim=True) if p.ndim == 2 else 1.0
                    p.sub_(p.grad / scale, alpha=group["lr"])


def test_an_optimizer_that_needs_matrices_is_refused() -> None:
    kinds: list[Any] = [ByRows, optim.Adafactor]
    if hasattr(optim, "Muon"):
        kinds.append(optim.Muon)
    for kind in kinds:
        for storage in ("packed", "dense"):
            model = nn.Sequential(nn.Linear(12, 16, bias=False))
            topology = so.sparsify(model, 0.8, storage=storage)  # pyright: ignore[reportArgumentType]
            base = kind(model.parameters(), lr=0.1)
            if storage == "packed":
                with pytest.raises(ValueError, match=r"storage='dense'"):
                    so.SparseOpt(so.HAM(base), topology, so.Static())
            else:
                so.SparseOpt(base, topology, so.Static())


@pytest.mark.parametrize("base", BASES)
def test_elementwise_optimizers_are_not_refused(base: str, build: Callable[..., Network]) -> None:
    model, topology = build(0.8, storage="packed")
    so.SparseOpt(BASES[base](model.parameters()), topology, so.Static())


def test_a_method_that_changes_the_counts_is_refused(build: Callable[..., Network]) -> None:
    class Changing(so.SET):
        def changes_counts(self) -> bool:
            return True

    model, topology = build(0.8, storage="packed")
    with pytest.raises(ValueError, match=r"storage='dense'"):
        so.SparseOpt(BASES["sgd"](model.parameters()), topology, Changing(total_steps=10))


def test_a_method_of_ones_own_sees_dense_layers(
    build: Callable[..., Network], train: Callable[..., None]
) -> None:
    class Columns(so.RigL):
        def grow_score(self, weight: Tensor, grad: Tensor | None, generator: Any) -> Tensor:
            assert grad is not None
            assert weight.ndim == 2
            assert weight.shape[0] > 1
            return (grad.abs() / grad.abs().mean(0)).nan_to_num()

    Pair(build, method=Columns(total_steps=60, every=2, drop_fraction=0.5)).train(train, 5)


def test_a_step_without_the_gradient_it_reads_is_refused(
    build: Callable[..., Network], loss_of: Callable[[nn.Module, int], Tensor]
) -> None:
    model, topology = build(0.8, storage="packed")
    optimizer = so.SparseOpt(
        BASES["sgd"](model.parameters()), topology, so.RigL(total_steps=100, every=1, until=1.0)
    )
    grads = torch.autograd.grad(loss_of(model, 1), list(model.parameters()))
    topology.dense_grads.forget()
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = grad
    with pytest.raises(RuntimeError, match="no backward"):
        optimizer.step()


@pytest.mark.slow
def test_the_compiler_keeps_its_graphs_when_the_masks_move(
    build: Callable[..., Network], train: Callable[..., None]
) -> None:
    pair = Pair(build, BASES["adam"], method=METHODS["rigl"])
    counters = torch._dynamo.utils.counters["stats"]
    compiled = torch.compile(pair.models[0], fullgraph=True, backend="aot_eager")
    before = counters["unique_graphs"]
    for step in range(1, 14):
        train(compiled, pair.optimizers[0], 1, first=step)
        train(pair.models[1], pair.optimizers[1], 1, first=step)
        pair.assert_same()
        pair.equalise()
    assert pair.optimizers[0].topology.version == 3
    assert counters["unique_graphs"] - before <= 2, (
        "one for ordinary steps, one for those that read the dense gradient"
    )


def test_module_weight_reads_and_takes_dense_tensors(build: Callable[..., Network]) -> None:
    model, topology = build(0.8, storage="packed")
    assert parametrize.is_parametrized(model[0], "weight")
    weight = model[0].weight
    assert isinstance(weight, Tensor)
    assert weight.shape == (16, 12)
    assert not weight[~topology.masks["0.weight"]].any()
    model[0].weight = torch.ones(16, 12)
    assert torch.equal(model[0].weight != 0, topology.masks["0.weight"])
    assert topology.parameters["0.weight"].shape == (1, topology.active("0.weight"))
