"""Elementwise optimizers step on the active weights alone. What that changes is the time it takes, and nothing else.

The reference is the same run with a hook on the base optimizer: who watches an optimizer step sees the dense parameters.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import sparseopt as so
from sparseopt.optim import packed_step

Base = Callable[[Iterable[Tensor]], optim.Optimizer]
Network = tuple[nn.Sequential, so.Topology]

BASES: dict[str, Base] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "fused sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4, fused=True),
    "maximize": lambda p: optim.SGD(p, lr=1e-3, momentum=0.9, maximize=True),
    "adam": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "adamw foreach": lambda p: optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "adadelta": lambda p: optim.Adadelta(p),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "radam": lambda p: optim.RAdam(p, lr=0.01),
    "adamax": lambda p: optim.Adamax(p, lr=0.01),
    "asgd": lambda p: optim.ASGD(p, lr=0.05, t0=5),
    "rprop": lambda p: optim.Rprop(p, lr=0.01),
    "ham": lambda p: so.HAM(optim.SGD(p, lr=0.05, momentum=0.9)),
}
METHODS = {
    "static": so.Static(),
    "set": so.SET(total_steps=60, every=4, drop_fraction=0.5),
    "rigl": so.RigL(total_steps=60, every=4, drop_fraction=0.5),
}


def watch(optimizer: optim.Optimizer) -> None:
    """Make an optimizer step densely."""
    inner = optimizer.base if isinstance(optimizer, so.HAM) else optimizer
    inner.register_step_post_hook(lambda *_: None)


class Pair:
    """The same training twice: packed, and watched."""

    def __init__(self, build: Callable[..., Network], base: Base = BASES["momentum"], **options: Any) -> None:
        method = options.pop("method", METHODS["set"])
        self.models, self.optimizers = [], []
        for dense in (False, True):
            model, topology = build(0.8, distribution="uniform")
            model.double()
            inner = base(model.parameters())
            if dense:
                watch(inner)
            self.models.append(model)
            self.optimizers.append(so.SparseOpt(inner, topology, method, **options))

    def each(self, action: Callable[[nn.Sequential, so.SparseOpt], Any]) -> list[Any]:
        return [
            action(model, optimizer) for model, optimizer in zip(self.models, self.optimizers, strict=True)
        ]

    def assert_same(self) -> None:
        """Weights, state, masks. Where vectors end, torch rounds some operations another way: a few units in the last place."""
        close: Any = {"rtol": 1e-12, "atol": 1e-15}
        ours, reference = self.optimizers
        for mine, its in zip(*(model.parameters() for model in self.models), strict=True):
            torch.testing.assert_close(mine, its, **close)
            assert ours.state.get(mine, {}).keys() == reference.state.get(its, {}).keys()
            for key, value in ours.state.get(mine, {}).items():
                torch.testing.assert_close(value, reference.state[its][key], **close)
        for name, mask in ours.topology.masks.items():
            assert torch.equal(mask, reference.topology.masks[name])


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many layers were packed, at each packed step."""
    seen: list[int] = []
    original = packed_step._read

    def counting(layers: Any, *rest: Any) -> Any:
        seen.append(len(layers))
        return original(layers, *rest)

    monkeypatch.setattr(packed_step, "_read", counting)
    return seen


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("base", BASES)
def test_a_packed_run_is_the_dense_run(
    base: str,
    method: str,
    build: Callable[..., Network],
    train: Callable[..., None],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
    packings: list[int],
) -> None:
    pair = Pair(build, BASES[base], method=METHODS[method], correction="global")
    pair.each(lambda model, optimizer: train(model, optimizer, 14))
    pair.assert_same()
    pair.each(lambda _, optimizer: assert_exactly_sparse(optimizer))
    assert packings == [3] * (
        14 if method == "static" else 11
    )  # one of the two runs, and no step that is an update


@pytest.mark.parametrize("correction", ["layer", "global", "unnormalized", "none"])
@pytest.mark.parametrize("max_grad_norm", [None, 0.1, float("inf")])
def test_every_correction_and_clipping(
    correction: Any,
    max_grad_norm: float | None,
    build: Callable[..., Network],
    train: Callable[..., None],
    packings: list[int],
) -> None:
    pair = Pair(build, correction=correction, max_grad_norm=max_grad_norm)
    pair.each(lambda model, optimizer: train(model, optimizer, 10))
    pair.assert_same()
    assert packings
    if max_grad_norm is not None:
        ours, reference = (optimizer.grad_norm for optimizer in pair.optimizers)
        torch.testing.assert_close(ours, reference)


def noise(tensor: Tensor) -> Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3), dtype=tensor.dtype)


EDITS: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda tensor: tensor.detach().add_(noise(tensor)),
    "through .data": lambda tensor: tensor.data.add_(noise(tensor)),
    "through numpy": lambda tensor: tensor.detach().numpy().__imul__(3),
    "one entry": lambda tensor: tensor.data[0].fill_(2.0),
    "inactive entries": lambda tensor: tensor.detach().masked_fill_(tensor == 0, 1.0),
    "other memory": lambda tensor: setattr(tensor, "data", tensor.detach() + noise(tensor)),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("what", ["weight", "gradient", "state"])
def test_edits_from_outside_count(
    what: str,
    edit: str,
    build: Callable[..., Network],
    train: Callable[..., None],
    loss_of: Callable[[nn.Module, int], Tensor],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
) -> None:
    """Of weights, gradients and state alike, between backward pass and step; inactive entries are zero after it."""
    pair = Pair(build, method=so.Static())

    def edited(model: nn.Sequential, optimizer: so.SparseOpt) -> None:
        train(model, optimizer, 3)
        optimizer.zero_grad()
        loss_of(model, 4).backward()
        weight = model[3].weight
        assert isinstance(weight, Tensor)
        tensors = {
            "weight": weight,
            "gradient": weight.grad,
            "state": optimizer.state[weight]["momentum_buffer"],
        }
        EDITS[edit](tensors[what])
        optimizer.step()
        assert_exactly_sparse(optimizer)
        train(model, optimizer, 2, first=5)

    pair.each(edited)
    pair.assert_same()


def test_a_state_dict_passes_from_packed_to_dense_and_back(
    build: Callable[..., Network], train: Callable[..., None]
) -> None:
    pair = Pair(build, BASES["adam"])
    pair.each(lambda model, optimizer: train(model, optimizer, 6))
    saved = pair.each(lambda model, opt: copy.deepcopy((model.state_dict(), opt.state_dict())))
    for model, optimizer, (weights, state) in zip(pair.models, pair.optimizers, reversed(saved), strict=True):
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        train(model, optimizer, 6, first=7)
    pair.assert_same()


def test_a_resumed_run_is_the_same_to_the_bit(
    build: Callable[..., Network], train: Callable[..., None]
) -> None:
    def start() -> tuple[nn.Sequential, so.SparseOpt]:
        model, topology = build(0.8, distribution="uniform")
        return model, so.SparseOpt(BASES["adamw"](model.parameters()), topology, METHODS["rigl"])

    (whole, its_optimizer), (half, half_optimizer), (resumed, optimizer) = start(), start(), start()
    train(whole, its_optimizer, 13)
    train(half, half_optimizer, 6)
    resumed.load_state_dict(half.state_dict())
    optimizer.load_state_dict(copy.deepcopy(half_optimizer.state_dict()))
    train(resumed, optimizer, 7, first=7)
    for mine, its in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_layers_that_cannot_be_packed_step_densely_beside_the_others(
    build: Callable[..., Network], train: Callable[..., None], packings: list[int]
) -> None:
    """A frozen layer, and one whose memory is not in the order of its axes."""
    pair = Pair(build)

    def mixed(model: nn.Sequential, optimizer: so.SparseOpt) -> None:
        weight = model[0].weight
        assert isinstance(weight, nn.Parameter)
        weight.data = weight.detach().t().contiguous().t()
        model[3].weight.requires_grad_(False)
        train(model, optimizer, 6)

    pair.each(mixed)
    pair.assert_same()
    assert set(packings) == {1}


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_of_several_backward_passes(
    set_to_none: bool, build: Callable[..., Network], loss_of: Callable[[nn.Module, int], Tensor]
) -> None:
    pair = Pair(build)

    def accumulate(model: nn.Sequential, optimizer: so.SparseOpt) -> None:
        for step in range(6):
            optimizer.zero_grad(set_to_none)
            for part in range(3):
                loss_of(model, 3 * step + part).backward()
            optimizer.step()

    pair.each(accumulate)
    pair.assert_same()


def test_a_closure_is_called_once_and_its_loss_returned(
    build: Callable[..., Network], loss_of: Callable[[nn.Module, int], Tensor], packings: list[int]
) -> None:
    pair = Pair(build, method=so.Static())
    calls = []

    def steps(model: nn.Sequential, optimizer: so.SparseOpt) -> list[float]:
        def closure() -> float:
            calls.append(model)
            optimizer.zero_grad()
            loss = loss_of(model, 1)
            loss.backward()
            return loss.item()

        return [optimizer.step(closure) for _ in range(4)]

    ours, reference = pair.each(steps)
    assert ours == pytest.approx(reference)
    assert len(calls) == 8
    assert len(packings) == 4


def test_hooks_of_the_base_optimizer_see_the_models_parameters(
    build: Callable[..., Network], train: Callable[..., None]
) -> None:
    model, topology = build(0.8, distribution="uniform")
    base = BASES["momentum"](model.parameters())
    optimizer = so.SparseOpt(base, topology, so.Static())
    train(model, optimizer, 2)
    seen = []
    base.register_step_pre_hook(lambda opt, *_: seen.extend(opt.param_groups[0]["params"]))
    train(model, optimizer, 1, first=3)
    assert all(mine is its for mine, its in zip(seen, model.parameters(), strict=True))


def test_a_scheduler_of_the_base_optimizer_is_no_hindrance(
    build: Callable[..., Network], train: Callable[..., None], packings: list[int]
) -> None:
    model, topology = build(0.8, distribution="uniform")
    base = BASES["momentum"](model.parameters())
    optim.lr_scheduler.StepLR(base, 10)
    train(model, so.SparseOpt(base, topology, so.Static()), 2)
    assert packings == [3, 3]


def test_a_failing_step_leaves_parameters_groups_and_state(
    build: Callable[..., Network], train: Callable[..., None]
) -> None:
    model, topology = build(0.8, distribution="uniform")
    optimizer = so.SparseOpt(BASES["momentum"](model.parameters()), topology, so.Static())
    train(model, optimizer, 3)
    weights, state = copy.deepcopy((dict(model.named_parameters()), optimizer.state_dict()))
    optimizer.param_groups[0]["lr"] = "too high"
    with pytest.raises(TypeError):
        train(model, optimizer, 1, first=4)
    torch.testing.assert_close(dict(model.named_parameters()), weights, rtol=0, atol=0)
    assert optimizer.state.keys() == set(model.parameters())
    for mine, saved in zip(optimizer.state_dict()["state"].values(), state["state"].values(), strict=True):
        torch.testing.assert_close(mine, saved)
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], model.parameters(), strict=True))
