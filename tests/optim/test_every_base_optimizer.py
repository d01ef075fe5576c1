"""Whatever the base optimizer, the masks decide: exact counts, and exact zeros in weights and state outside them."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]
Base = Callable[[Iterable[Tensor]], optim.Optimizer]

# name: (constructor, number of its state tensors that have one entry a weight)
BASES: dict[str, tuple[Base, int]] = {
    "sgd": (lambda p: optim.SGD(p, lr=0.1), 0),
    "weight decay": (lambda p: optim.SGD(p, lr=0.1, weight_decay=0.1), 0),
    "momentum": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4), 1),
    "nesterov": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), 1),
    "maximize": (lambda p: optim.SGD(p, lr=1e-3, momentum=0.9, maximize=True), 1),
    "adam": (lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1), 2),
    "amsgrad": (lambda p: optim.Adam(p, lr=0.01, amsgrad=True), 3),
    "adamw": (lambda p: optim.AdamW(p, lr=0.01), 2),
    "adamw, one by one": (lambda p: optim.AdamW(p, lr=0.01, foreach=False), 2),
    "adamw, fused": (lambda p: optim.AdamW(p, lr=0.01, fused=True), 2),
    "rmsprop": (lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True), 3),
    "adagrad": (lambda p: optim.Adagrad(p, lr=0.1), 1),
    "adagrad, warm": (lambda p: optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5), 1),
    "adadelta": (lambda p: optim.Adadelta(p), 2),
    "nadam": (lambda p: optim.NAdam(p, lr=0.01), 2),
    "radam": (lambda p: optim.RAdam(p, lr=0.01), 2),
    "adamax": (lambda p: optim.Adamax(p, lr=0.01), 2),
    "asgd": (lambda p: optim.ASGD(p, lr=0.05, t0=5), 1),
    "rprop": (lambda p: optim.Rprop(p, lr=0.01), 2),
    "ham": (lambda p: so.HAM(optim.SGD(p, lr=0.05, momentum=0.9)), 1),
}
METHODS = {
    "static": so.Static(),
    "set": so.SET(total_steps=60, every=4, drop_fraction=0.5),
    "rigl": so.RigL(total_steps=60, every=4, drop_fraction=0.5),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("base", BASES)
def test_zeros_and_counts_are_exact_after_many_steps(
    base: str,
    method: str,
    build: Callable[..., Network],
    train: Callable[..., None],
    shaped_state: Callable[..., dict[str, Tensor]],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
) -> None:
    construct, states = BASES[base]
    model, topology = build(0.7)
    before = {name: parameter.detach().clone() for name, parameter in topology.parameters.items()}
    first = {name: mask.clone() for name, mask in topology.masks.items()}
    optimizer = so.SparseOpt(construct(model.parameters()), topology, METHODS[method], correction="global")
    train(model, optimizer, 30)
    assert_exactly_sparse(optimizer)
    assert sum(int(mask.sum()) for mask in topology.masks.values()) == round(
        0.3 * (12 * 16 + 16 * 10 + 10 * 4)
    )
    for name, parameter in topology.parameters.items():
        assert len(shaped_state(optimizer, parameter)) == states
        assert (parameter.detach() != before[name]).any()
        assert torch.equal(topology.masks[name], first[name]) == (method == "static")


def test_the_codes_of_a_quantised_state_are_left_alone(
    build: Callable[..., Network], train: Callable[..., None]
) -> None:
    class Quantised(optim.SGD):
        """Keeps one byte a weight whose value stands for a number by way of a table."""

        def step(self, closure: Any = None) -> Any:
            for parameter in (p for group in self.param_groups for p in group["params"]):
                self.state[parameter].setdefault("code", torch.full(parameter.shape, 7, dtype=torch.uint8))
            return super().step(closure)

    model, topology = build()
    optimizer = so.SparseOpt(Quantised(model.parameters(), lr=0.1), topology, METHODS["set"])
    train(model, optimizer, 10)
    assert all((optimizer.state[parameter]["code"] == 7).all() for parameter in model.parameters())


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="came with torch 2.9")
@pytest.mark.parametrize("method", METHODS)
def test_muon_whose_update_is_dense(
    method: str,
    build: Callable[..., Network],
    train: Callable[..., None],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
) -> None:
    model, topology = build(0.7, norm=False)
    optimizer = so.SparseOpt(optim.Muon(model.parameters(), lr=0.02), topology, METHODS[method])
    train(model, optimizer, 30)
    assert_exactly_sparse(optimizer)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_with_a_closure_lowers_the_loss(
    method: str,
    line_search: Any,
    build: Callable[..., Network],
    loss_of: Callable[[nn.Module, int], Tensor],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
) -> None:
    model, topology = build(0.5)
    base = optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn=line_search)
    optimizer = so.SparseOpt(base, topology, METHODS[method])

    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of(model, 1)
        loss.backward()
        return loss.item()

    losses = [optimizer.step(closure) for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]
    assert_exactly_sparse(optimizer)


def test_lbfgs_begins_anew_when_connections_move(
    build: Callable[..., Network], loss_of: Callable[[nn.Module, int], Tensor]
) -> None:
    model, topology = build(0.8)
    base = optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    optimizer = so.SparseOpt(base, topology, so.SET(total_steps=40, every=3))
    outside: list[float] = []

    def closure() -> float:
        for name, parameter in topology.parameters.items():
            outside.append(parameter.detach()[~topology.masks[name]].abs().max().item())
        optimizer.zero_grad()
        loss = loss_of(model, len(outside))
        loss.backward()
        return loss.item()

    for _ in range(12):
        optimizer.step(closure)
    assert max(outside) == 0.0, "inactive weights are zero while the closure evaluates"
