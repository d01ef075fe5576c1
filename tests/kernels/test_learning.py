"""Where some inactive weights learn, as under Top-KAST, the kernels compute their gradient with that of the active ones."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so
from sparseopt.kernels.conv.run import RegionRun
from sparseopt.kernels.linear import run as linear_run
from sparseopt.methods.view import LayerView

STEPS = 4


def convolutions() -> nn.Module:
    """Without biases: with one, torch rounds what a neuron without inputs is above its mean, and ReLU passes all or nothing."""
    first, second = (
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False),
    )
    layers = [first, nn.BatchNorm2d(16), nn.ReLU(), second, nn.BatchNorm2d(24), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5))


def linears() -> nn.Module:
    first = nn.Linear(192, 64, bias=False)
    return nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5))


def loss_of(model: nn.Module, step: int) -> Tensor:
    return model(torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(step))).square().mean()


Gradients = dict[str, Tensor]


def trained(
    make: Callable[[], nn.Module], backward_sparsity: float, *, accelerated: bool = True, **options: Any
) -> Iterator[tuple[so.SparseOpt, Gradients, Gradients]]:
    """After every backward pass, before the step: the gradients that are there, and those of a dense copy."""
    torch.manual_seed(0)
    model = make()
    topology = so.sparsify(model, 0.0)
    method = so.TopKAST(total_steps=STEPS, sparsity=0.9, backward_sparsity=backward_sparsity)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = so.SparseOpt(sgd, topology, method, correction="none", **options)
    if accelerated:
        so.accelerate(model, topology, break_even=0.0)
        assert so.kernels.accelerated_layers(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        copied = copy.deepcopy(model)  # which is neither accelerated nor held to masks
        loss_of(copied, step).backward()
        loss_of(model, step).backward()
        yield optimizer, gradients(model, topology), gradients(copied, topology)
        optimizer.step()


def gradients(model: nn.Module, topology: so.Topology) -> Gradients:
    found = {name: parameter.grad for name, parameter in model.named_parameters() if name in topology.layers}
    return {name: grad for name, grad in found.items() if grad is not None}


@pytest.mark.parametrize("make", [convolutions, linears])
@pytest.mark.parametrize(
    "backward_sparsity", [0.8, 0.4]
)  # few enough to be listed with the active ones, and not
@pytest.mark.parametrize("accelerated", [True, False])
def test_the_gradient_is_the_dense_network_s_where_weights_learn_and_zero_elsewhere(
    make: Callable[[], nn.Module], backward_sparsity: float, accelerated: bool
) -> None:
    for optimizer, found, dense in trained(make, backward_sparsity, accelerated=accelerated):
        assert len(found) == len(optimizer.topology.layers)
        for name, grad in found.items():
            learning, mask = optimizer.learning(name), optimizer.topology.masks[name]
            assert learning.sum() > mask.sum()
            assert not grad[~learning].any()
            assert grad[learning & ~mask].any()
            scale = dense[name].abs().max().item()
            torch.testing.assert_close(grad[learning], dense[name][learning], rtol=1e-3, atol=1e-5 * scale)


def test_the_dense_gradient_is_not_computed_where_few_weights_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    of_conv, of_linear = RegionRun._dense_gradient, linear_run.outer

    def spy_conv(*args: Any) -> Any:
        calls.append("conv")
        return of_conv(*args)

    def spy_linear(*args: Any) -> Any:
        calls.append("linear")
        return of_linear(*args)

    monkeypatch.setattr(RegionRun, "_dense_gradient", spy_conv)
    monkeypatch.setattr(linear_run, "outer", spy_linear)
    for make in (convolutions, linears):
        list(trained(make, 0.8))
    assert calls == []
    for make in (convolutions, linears):
        list(trained(make, 0.4))
    assert set(calls) == {"conv", "linear"}


def test_clipping_as_the_paper_does_reads_all_of_it() -> None:
    """Its norm is that of the dense gradient: the lists that were made without it are made anew."""
    steps = trained(convolutions, 0.8, max_grad_norm=float("inf"))
    optimizer, found, _ = next(steps)
    name = next(iter(found))
    assert not found[name][~optimizer.learning(name)].any()
    optimizer.clip = "paper"  # the step that follows says what the next backward pass delivers
    optimizer, found, dense = next(steps)
    assert found[name][~optimizer.learning(name)].any()
    torch.testing.assert_close(
        found[name], dense[name], rtol=1e-3, atol=1e-5 * dense[name].abs().max().item()
    )


@dataclass(frozen=True)
class Resting(so.TopKAST):
    """Active weights of odd number rest."""

    def awake(self, view: LayerView, step: int) -> Tensor:
        odd = torch.arange(view.mask.numel()).view(view.mask.shape) % 2 == 1
        return super().awake(view, step) & ~odd


@dataclass(frozen=True)
class Watching(so.TopKAST):
    """Looks at the gradient of every step."""

    seen: list[float] = field(default_factory=list)

    def watch(self, view: LayerView, step: int) -> None:
        assert view.grad is not None
        self.seen.append(view.grad.count_nonzero().item() / view.grad.numel())


def started(method: so.Method) -> tuple[nn.Module, so.SparseOpt]:
    torch.manual_seed(0)
    model = convolutions()
    topology = so.sparsify(model, 0.0)
    optimizer = so.SparseOpt(
        torch.optim.SGD(model.parameters(), lr=0.05), topology, method, correction="none"
    )
    return so.accelerate(model, topology, break_even=0.0), optimizer


def differs(model: nn.Module) -> float:
    """How far the output is from that of a dense copy."""
    with torch.no_grad():
        return (loss_of(model, 0) - loss_of(copy.deepcopy(model), 0)).abs().item()


def test_active_weights_that_rest_are_computed_with() -> None:
    model, _ = started(Resting(total_steps=9, sparsity=0.9, backward_sparsity=0.8))
    assert differs(model) < 1e-5


def test_masks_and_weights_of_before_are_computed_with() -> None:
    """What learns is the optimizer's, and another one than when they were saved."""
    model, optimizer = started(so.TopKAST(total_steps=99, sparsity=0.9, backward_sparsity=0.8))
    weights, masks = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.topology.state_dict())
    for step in range(20):
        optimizer.zero_grad()
        loss_of(model, step).mul(-100).backward()
        optimizer.step()
    optimizer.topology.load_state_dict(masks)
    model.load_state_dict(weights)
    assert differs(model) < 1e-5


@pytest.mark.parametrize("accelerated", [True, False])
def test_a_method_that_watches_sees_the_whole_gradient(accelerated: bool) -> None:
    method = Watching(total_steps=9, sparsity=0.9, backward_sparsity=0.8)
    model, optimizer = started(method)
    if not accelerated:
        so.kernels.restore(model)
    loss_of(model, 0).backward()
    optimizer.step()
    assert len(method.seen) == 3
    assert max(method.seen) > 0.5  # a fifth of the weights learn


def test_the_whole_gradient_can_be_asked_for() -> None:
    optimizer, *_ = next(trained(convolutions, 0.8))
    grads = optimizer.topology.dense_grads
    before = grads.wanted, grads.learning
    with grads.all_wanted():
        assert grads.wanted
        assert not grads.learning
    assert (grads.wanted, grads.learning) == before
