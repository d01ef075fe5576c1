"""Optimizers around optimizers, state that is no number a weight, scales, layers that are frozen or not reached."""

import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import sparseopt as so
from sparseopt.topology.densities import active_counts


def network(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]
    return nn.Sequential(*layers)


def step(model: nn.Module, optimizer: optim.Optimizer, inputs: int = 16, scale: float = 1.0) -> None:
    optimizer.zero_grad()
    draw = torch.Generator().manual_seed(getattr(optimizer, "steps", 0))
    loss = (model(torch.randn(32, inputs, generator=draw)) - 1).square().mean()
    (loss * scale).backward()
    optimizer.step()


class Lookahead(optim.Optimizer):
    """As packages have it: the inner optimizer's state is its own."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, {})

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


def test_state_of_an_optimizer_within_an_optimizer_is_reset() -> None:
    model = network(16, 24, 8)
    topology = so.sparsify(model, 0.7)
    inner = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = so.SparseOpt(Lookahead(inner), topology, so.SET(100, every=5), correction="none")
    for _ in range(20):
        step(model, optimizer)
    for name, parameter in topology.parameters.items():
        momentum = inner.state[parameter]["momentum_buffer"]
        assert momentum.any()
        assert not momentum[~topology.masks[name]].any()


class Preconditioned(optim.Optimizer):
    """Keeps a matrix over the inputs, which of a square layer has the weight's shape, and a momentum."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                state, grad = self.state[parameter], parameter.grad
                matrix = state.setdefault("preconditioner", torch.eye(grad.shape[1], dtype=grad.dtype))
                matrix += 1.0
                state.setdefault("momentum", torch.zeros_like(grad)).add_(grad)
                parameter -= group["lr"] * state["momentum"]


def test_a_matrix_that_has_the_shape_of_a_square_weight_is_left_alone() -> None:
    model = network(12, 12)
    topology = so.sparsify(model, 0.7)
    base = Preconditioned(model.parameters())
    optimizer = so.SparseOpt(base, topology, so.SET(100, every=2), correction="none")
    for _ in range(4):
        step(model, optimizer, 12)
    state = base.state[topology.parameters["0.weight"]]
    assert torch.equal(state["preconditioner"], torch.eye(12) + 2.0)  # two of the steps were updates
    assert not state["momentum"][~topology.masks["0.weight"]].any()


@pytest.mark.parametrize("base", [optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad, optim.Rprop])
def test_without_effect_is_told(
    base: Callable[..., optim.Optimizer], caplog: pytest.LogCaptureFixture
) -> None:
    model = network(16, 24, 8)
    topology = so.sparsify(model, 0.7)
    optimizer = so.SparseOpt(base(model.parameters(), lr=1e-2), topology, so.Static(), correction="none")
    assert "next to no effect" not in caplog.text
    del optimizer
    so.SparseOpt(base(model.parameters(), lr=1e-2), topology, so.Static(), correction="layer")
    assert "next to no effect" in caplog.text


def moved(base: Callable[..., optim.Optimizer], correction: Any) -> Tensor:
    """How far 40 steps move a layer of uneven fan-in behind BatchNorm."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4))
    mask = torch.arange(24).expand(12, 24) < torch.where(torch.arange(12) % 2 == 0, 3, 20).view(12, 1)
    topology = so.sparsify(model, masks={"0.weight": mask, "3.weight": torch.ones(4, 12, dtype=torch.bool)})
    before = topology.weight("0.weight").clone()
    optimizer = so.SparseOpt(base(model.parameters(), lr=0.01), topology, so.Static(), correction=correction)
    for _ in range(40):
        step(model, optimizer, 24)
    return topology.weight("0.weight") - before


@pytest.mark.parametrize(
    "base", [optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RMSprop, optim.Adagrad]
)
def test_a_correction_acts_with_sgd_and_is_divided_out_by_the_others(
    base: Callable[..., optim.Optimizer],
) -> None:
    plain, corrected = moved(base, "none"), moved(base, "layer")
    elsewhere = torch.linalg.vector_norm(corrected - plain) / torch.linalg.vector_norm(plain)
    assert elsewhere > 0.1 if base is optim.SGD else elsewhere < 1e-3


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}])
def test_with_effect_nothing_is_told(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = network(16, 24, 8)
    topology = so.sparsify(model, 0.7)
    so.SparseOpt(optim.SGD(model.parameters(), lr=0.1, **options), topology, so.Static(), correction="layer")
    assert "no effect" not in caplog.text


@pytest.mark.parametrize("frozen", ["at the start", "later"])
@pytest.mark.parametrize("name", ["topkast", "gmp", "acdc"])
def test_a_frozen_layer_changes_nobody_elses_share(name: str, frozen: str) -> None:
    options: dict[str, Any] = {"sparsity": 0.9, "distribution": "erk"}
    every: dict[str, so.Method] = {
        "topkast": so.TopKAST(30, backward_sparsity=0.8, **options),
        "gmp": so.GMP(30, every=3, until=0.8, **options),
        "acdc": so.ACDC(30, warmup=0.1, phase=0.2, scope="layer", **options),
    }
    model = network(40, 60, 60, 8)
    if frozen == "at the start":
        model[1].weight.requires_grad_(False)
    topology = so.sparsify(model, 0.0, include=["0.weight", "1.weight", "2.weight"])
    optimizer = so.SparseOpt(optim.SGD(model.parameters(), lr=0.01), topology, every[name], correction="none")
    for at in range(30):
        if at == 5:
            model[1].weight.requires_grad_(False)
        step(model, optimizer, 40)
    expected = active_counts({name: tuple(mask.shape) for name, mask in topology.masks.items()}, 0.9, "erk")
    assert {each: topology.active(each) for each in ("0.weight", "2.weight")} == {
        each: expected[each] for each in ("0.weight", "2.weight")
    }


class Branches(nn.Module):
    """One of two branches can be skipped."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(16, 24), nn.Linear(16, 24)
        self.out, self.skip = nn.Linear(24, 8), False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x)
        return self.out(torch.relu(hidden if self.skip else hidden + self.b(x)))


def test_mest_gives_its_surplus_back_also_where_the_loss_does_not_reach() -> None:
    model = Branches()
    topology = so.sparsify(model, 0.8)
    asked = {name: topology.active(name) for name in topology.layers}
    method = so.MEST(40, every=5, soft=True, drop_decay="constant")
    optimizer = so.SparseOpt(optim.SGD(model.parameters(), lr=0.05), topology, method, correction="none")
    for at in range(40):
        model.skip = at >= 28
        step(model, optimizer)
        if at == 27:
            assert topology.active("b.weight") > asked["b.weight"]
    assert {name: topology.active(name) for name in topology.layers} == asked


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_a_gradient_that_was_set_to_zero_and_not_reached_decides_nothing(storage: Any) -> None:
    model = Branches()
    topology = so.sparsify(model, 0.8, storage=storage)
    optimizer = so.SparseOpt(
        optim.SGD(model.parameters(), lr=0.05), topology, so.RigL(40, every=5), correction="none"
    )
    before = {name: mask.clone() for name, mask in topology.masks.items()}
    for at in range(5):
        model.skip = at == 4
        optimizer.zero_grad(set_to_none=False)
        model(torch.randn(32, 16)).square().mean().backward()
        optimizer.step()
    assert torch.equal(topology.masks["b.weight"], before["b.weight"])
    assert not torch.equal(topology.masks["a.weight"], before["a.weight"])


class Watching(so.RigL):
    """Sees what its scores are given."""

    largest: float = 0.0

    def grow_score(self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None) -> Tensor:
        assert grad is not None
        object.__setattr__(self, "largest", max(self.largest, float(grad.abs().max())))
        return super().grow_score(weight, grad, generator)


def test_scores_see_the_gradient_as_it_was_scaled_back_whatever_the_storage() -> None:
    seen = {}
    for storage in ("dense", "packed"):
        model = network(16, 24, 8)
        topology = so.sparsify(model, 0.7, storage=storage)
        method = Watching(40, every=3)
        optimizer = so.SparseOpt(optim.SGD(model.parameters(), lr=0.01), topology, method, correction="none")
        for _ in range(3):
            optimizer.zero_grad()
            draw = torch.Generator().manual_seed(optimizer.steps)
            (model(torch.randn(32, 16, generator=draw)).square().mean() * 1024).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= 1024
            optimizer.step()
        seen[storage] = method.largest
    assert seen["packed"] == pytest.approx(seen["dense"])


def test_an_update_that_waits_leaves_the_papers_norm_what_it_reads(caplog: pytest.LogCaptureFixture) -> None:
    steps = {}
    for storage in ("dense", "packed"):
        model = network(16, 24, 8)
        topology = so.sparsify(model, 0.8, storage=storage)
        optimizer = so.SparseOpt(
            *(optim.SGD(model.parameters(), lr=0.0), topology, so.RigL(100, every=3)),
            max_grad_norm=1.0,
            clip="paper",
            correction="none",
        )
        before = topology.masks["0.weight"].clone()
        for at in range(3):
            step(model, optimizer, scale=float("nan") if at == 2 else 1.0)
        assert torch.equal(topology.masks["0.weight"], before)
        steps[storage] = optimizer.grad_norm
    assert caplog.text.count("waits") == 2
    assert all(norm is not None and norm.isnan() for norm in steps.values())


def test_a_state_loaded_after_a_backward_pass_forgets_it() -> None:
    model = network(16, 24, 8)
    topology = so.sparsify(model, 0.8, storage="packed")
    optimizer = so.SparseOpt(
        optim.SGD(model.parameters(), lr=0.1), topology, so.RigL(100, every=3), correction="none"
    )
    for _ in range(2):
        step(model, optimizer)
    state = optimizer.state_dict()
    for _ in range(2):
        step(model, optimizer)
    model(torch.randn(4, 16)).sum().backward()
    optimizer.load_state_dict(state)
    model.zero_grad()
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    assert optimizer.steps == 3


def test_what_was_loaded_beyond_the_masks_is_forgotten_by_the_next_step() -> None:
    model = network(16, 24, 8)
    topology = so.sparsify(model, 0.8, storage="packed")
    optimizer = so.SparseOpt(optim.SGD(model.parameters(), lr=0.1), topology, so.Static(), correction="none")
    model.load_state_dict(network(16, 24, 8).state_dict())
    packed = [topology.packed(name) for name in topology.layers]
    assert all(each is not None and each.scatter.beyond is not None for each in packed)
    step(model, optimizer)
    assert all(each is not None and each.scatter.beyond is None for each in packed)


def test_a_second_optimizer_goes_on_with_the_record_of_what_was_ever_active() -> None:
    model = network(16, 24, 8)
    topology = so.sparsify(model, 0.9)
    optimizer = so.SparseOpt(
        optim.SGD(model.parameters(), lr=0.1), topology, so.SNFS(40, every=2), correction="none"
    )
    for _ in range(20):
        step(model, optimizer)
    rate = topology.itop_rate()
    del optimizer
    so.SparseOpt(optim.SGD(model.parameters(), lr=0.1), topology, so.SNFS(40, every=2), correction="none")
    assert topology.itop_rate() >= rate > 0.11


def test_a_method_that_prunes_in_a_short_training_is_not_said_to_do_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = network(16, 24, 8)
    so.SparseOpt(
        optim.SGD(model.parameters(), lr=0.1), so.sparsify(model, 0.5), so.GraNet(50), correction="none"
    )
    assert "never moves" not in caplog.text
    other = network(16, 24, 8)
    so.SparseOpt(
        optim.SGD(other.parameters(), lr=0.1), so.sparsify(other, 0.5), so.RigL(50), correction="none"
    )
    assert "never moves" in caplog.text


class TiedByFunction(nn.Module):
    """The encoder's weight again, as a function, behind which there is no BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.bn = nn.Linear(20, 30, bias=False), nn.BatchNorm1d(30)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(torch.relu(self.bn(self.enc(x))), self.enc.weight.t())


class AsksForItsShape(TiedByFunction):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.enc(x)) * self.enc.weight.shape[0]


def test_a_weight_that_a_function_uses_as_well_is_not_corrected() -> None:
    assert so.sparsify(TiedByFunction(), 0.5).normed == frozenset()
    assert so.sparsify(AsksForItsShape(), 0.5).normed == {"enc.weight"}
