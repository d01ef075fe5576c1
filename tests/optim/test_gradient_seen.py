"""The gradient a user sees between backward and step: zero outside the masks, unless the step reads all of it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]
Loss = Callable[[nn.Module, int], Tensor]


def outside(topology: so.Topology) -> bool:
    """Does a gradient have entries outside its mask?"""
    found = [
        parameter.grad[~topology.masks[name]].any()
        for name, parameter in topology.parameters.items()
        if parameter.grad is not None
    ]
    return any(bool(each) for each in found)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_it_is_masked_at_all_steps_but_those_that_read_it(
    build: Callable[..., Network], loss_of: Loss, set_to_none: bool
) -> None:
    model, topology = build(0.8)
    optimizer = so.SparseOpt(
        torch.optim.SGD(model.parameters(), lr=0.1), topology, so.RigL(total_steps=60, every=3)
    )
    seen = []
    for step in range(1, 8):
        optimizer.zero_grad(set_to_none)
        for part in range(2):
            loss_of(model, 2 * step + part).backward()
        seen.append(outside(topology))
        optimizer.step()
    assert seen == [False, False, True, False, False, True, False]


def test_without_an_optimizer_of_ours_nothing_happens_to_gradients(
    build: Callable[..., Network], loss_of: Loss
) -> None:
    model, topology = build(0.8)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, so.Static())
    del optimizer
    loss_of(model, 1).backward()
    assert outside(topology)


def test_a_copy_s_gradients_are_held_to_its_own_masks(build: Callable[..., Network], loss_of: Loss) -> None:
    import copy

    model, topology = build(0.8)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, so.Static())
    copied, its = copy.deepcopy((model, optimizer))
    loss_of(copied, 1).backward()
    assert not outside(its.topology)


def test_what_users_add_outside_the_masks_moves_nothing(build: Callable[..., Network], loss_of: Loss) -> None:
    """The step holds gradients to their masks again, unless it sees that nobody has touched them."""
    norms = []
    for noisy in (False, True):
        model, topology = build(0.8)
        optimizer = so.SparseOpt(
            torch.optim.SGD(model.parameters(), lr=0.1), topology, so.Static(), max_grad_norm=1e-3
        )
        loss_of(model, 1).backward()
        for name, parameter in topology.parameters.items():
            assert parameter.grad is not None
            if noisy:
                parameter.grad.masked_fill_(~topology.masks[name], 7.0)
        optimizer.step()
        norms.append(optimizer.grad_norm)
        assert all(not topology.weight(name)[~mask].any() for name, mask in topology.masks.items())
    assert torch.equal(*norms)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise ArithmeticError


def test_a_pass_that_fails_midway_changes_nothing_for_the_next(
    build: Callable[..., Network], loss_of: Loss
) -> None:
    model, topology = build(0.8)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, so.Static())
    hook = model[2].register_forward_hook(lambda module, args, output: Fails.apply(output))
    with pytest.raises(ArithmeticError):
        loss_of(model, 1).backward()
    hook.remove()
    model.zero_grad()
    loss_of(model, 1).backward()
    assert not outside(topology)
    optimizer.step()


def test_a_step_that_reads_what_was_masked_is_refused(build: Callable[..., Network], loss_of: Loss) -> None:
    model, topology = build(0.8)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, so.Static())
    loss_of(model, 1).backward()
    optimizer.method = so.RigL(total_steps=100, every=1)
    with pytest.raises(RuntimeError, match=r"RigL .*inactive"):
        optimizer.step()


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no ever": lambda state: state["topology"]["layers"]["0.weight"].pop("ever"),
    "short ever": lambda state: state["topology"]["layers"]["0.weight"].update(ever=torch.zeros(3).byte()),
    "no mask": lambda state: state["topology"]["layers"]["3.weight"].pop("mask"),
    "mask of floats": lambda state: state["topology"]["layers"]["0.weight"].update(mask=torch.zeros(24)),
    "no waiting": lambda state: state.pop("waiting"),
    "waiting is none": lambda state: state.update(waiting=None),
    "no configuration": lambda state: state.pop("configuration"),
    "no steps": lambda state: state.pop("steps"),
    "no seed": lambda state: state["topology"].pop("seed"),
    "no layers": lambda state: state["topology"].pop("layers"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_states_are_refused_before_anything_changes(
    damage: str, build: Callable[..., Network], train: Callable[..., None]
) -> None:
    def start() -> tuple[nn.Sequential, so.SparseOpt]:
        model, topology = build(0.8)
        adam = torch.optim.Adam(model.parameters(), lr=0.1)
        return model, so.SparseOpt(adam, topology, so.SET(total_steps=60, every=2))

    (trained, saved), (model, optimizer) = start(), start()
    train(trained, saved, 5)
    train(model, optimizer, 1)
    state = saved.state_dict()
    DAMAGE[damage](state["sparseopt"])
    before = optimizer.state_dict()["state"]
    masks = {name: mask.clone() for name, mask in optimizer.topology.masks.items()}
    with pytest.raises(ValueError, match="state"):
        optimizer.load_state_dict(state)
    torch.testing.assert_close(optimizer.state_dict()["state"], before, rtol=0, atol=0)
    assert all(torch.equal(mask, masks[name]) for name, mask in optimizer.topology.masks.items())
    assert optimizer.steps == 1


def test_passes_that_reach_different_layers() -> None:
    body, heads = nn.Linear(6, 8), (nn.Linear(8, 5), nn.Linear(8, 7))
    model = nn.ModuleList([body, *heads])
    topology = so.sparsify(model, 0.5, distribution="uniform")
    held = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, so.Static())
    for frozen in (False, True):  # the second time, nothing is shared
        for head in heads * 2:
            hidden = body(torch.randn(4, 6))
            head(hidden.detach() if frozen else hidden).square().sum().backward()
            assert head.weight.grad is not None
            assert not outside(topology)
            model.zero_grad()
    held.step()


def test_passes_within_a_pass(build: Callable[..., Network]) -> None:
    """As checkpoints of activations make them."""
    model, topology = build(0.8)
    held = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, so.Static())
    x = torch.randn(8, next(iter(topology.layers.values())).shape[1], requires_grad=True)
    for _ in range(2):
        checkpoint_sequential(model, 2, x, use_reentrant=True).square().sum().backward()
        assert all(each.grad is not None for each in topology.parameters.values())
        assert not outside(topology)
        held.zero_grad()


@pytest.mark.parametrize("replaced", [False, True])
def test_gradients_that_users_change_are_masked_again(
    build: Callable[..., Network], loss_of: Loss, replaced: bool
) -> None:
    model, topology = build(0.8)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = so.SparseOpt(sgd, topology, so.Static(), max_grad_norm=float("inf"), correction="none")
    norms: list[Tensor] = []
    for noise in (0.0, 1.0):
        optimizer.zero_grad()
        loss_of(model, 1).backward()
        before = copy.deepcopy(model.state_dict())
        for name, parameter in topology.parameters.items():
            assert parameter.grad is not None
            outside = noise * ~topology.masks[name]
            if replaced:
                parameter.grad = parameter.grad + outside
            else:
                parameter.grad += outside
        optimizer.step()
        assert optimizer.grad_norm is not None
        norms.append(optimizer.grad_norm)
        model.load_state_dict(before)
    torch.testing.assert_close(norms[1], norms[0], rtol=0, atol=0)


def test_a_layer_that_was_frozen_when_the_optimizer_was_made_is_masked_once_it_learns(
    build: Callable[..., Network], loss_of: Loss
) -> None:
    model, topology = build(0.8)
    first = next(iter(topology.parameters.values())).requires_grad_(False)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, so.Static())
    first.requires_grad_(True)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        assert first.grad is not None
        assert not outside(topology)
        optimizer.step()


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_an_update_wants_a_backward_pass_of_its_own(
    storage: str, build: Callable[..., Network], loss_of: Loss
) -> None:
    model, topology = build(0.8, storage=storage)
    method = so.RigL(total_steps=60, every=2)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, method)
    loss_of(model, 1).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="no backward pass has left that of"):
        optimizer.step()
