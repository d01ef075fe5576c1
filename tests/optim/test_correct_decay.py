"""With `correct_decay` a neuron's factor multiplies its weight decay as well: c (g + wd w) coupled, 1 - c lr wd decoupled."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RMSprop

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]
Build = Callable[..., Network]
LR, DECAY = 0.05, 0.3  # a decay that shows


def corrected(model: nn.Module, topology: so.Topology) -> dict[nn.Parameter, Tensor]:
    """The factor of every weight, in the shape of its parameter; 1 where nothing is corrected."""
    factors = so.skew_factors(topology, "global")
    by_parameter = {parameter: name for name, parameter in topology.parameters.items()}
    return {
        parameter: topology.layers[by_parameter[parameter]].broadcast(factors[by_parameter[parameter]])
        if parameter in by_parameter
        else torch.ones((), dtype=torch.float64)
        for parameter in model.parameters()
    }


def by_definition(base: type[Optimizer], decoupled: bool, sign: float, **options: Any) -> Callable[..., Any]:
    """Three steps of the base optimizer without decay, the decay being put in by hand, neuron by neuron."""

    def run(model: nn.Module, topology: so.Topology, loss_of: Callable[[nn.Module, int], Tensor]) -> None:
        optimizer = base(model.parameters(), lr=LR, **options)  # pyright: ignore[reportCallIssue]
        factors, masks = corrected(model, topology), topology.masks
        for step in range(1, 4):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    assert parameter.grad is not None
                    c = factors[parameter]
                    if name in masks:
                        parameter.grad *= masks[name]
                    parameter.grad *= c
                    if decoupled:
                        parameter *= 1 - c * LR * DECAY
                    else:
                        parameter.grad += sign * c * DECAY * parameter
            optimizer.step()

    return run


@pytest.mark.parametrize("sparsity", [0.4, 0.8])  # passes over dense tensors, and over active weights
@pytest.mark.parametrize(
    ("base", "options", "decoupled"),
    [
        (SGD, {"momentum": 0.9, "nesterov": True}, False),
        (SGD, {"momentum": 0.9, "maximize": True}, False),
        (Adam, {}, False),
        (RMSprop, {}, False),
        (AdamW, {}, True),
        (NAdam, {"decoupled_weight_decay": True}, True),
    ],
)
def test_decay_is_multiplied_by_the_factor(
    build: Build,
    loss_of: Any,
    train: Any,
    base: Any,
    options: dict[str, Any],
    decoupled: bool,
    sparsity: float,
) -> None:
    layers = {"norm": False, "exclude": "6.weight"}  # the last layer is dense, and decays as ever
    model, topology = build(sparsity, **layers)
    model.double()
    expected, its_topology = build(sparsity, **layers)
    expected.double()
    sign = -1.0 if options.get("maximize") else 1.0
    plain = options | ({"weight_decay": 0.0} if base is AdamW else {})
    by_definition(base, decoupled, sign, **plain)(expected, its_topology, loss_of)
    inner = base(model.parameters(), lr=LR, weight_decay=DECAY, **options)
    optimizer = so.SparseOpt(inner, topology, so.Static(), correction="global", correct_decay=True)
    train(model, optimizer, 3)
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("clip", ["active", "paper"])
def test_the_clip_sees_loss_gradients_alone(build: Build, train: Any, clip: Any) -> None:
    norms = []
    for correct_decay in (False, True):
        model, topology = build(0.8)
        sgd = SGD(model.parameters(), lr=LR, weight_decay=DECAY)
        optimizer = so.SparseOpt(
            *(sgd, topology, so.Static()), correct_decay=correct_decay, max_grad_norm=1e-3, clip=clip
        )
        train(model, optimizer, 1)
        norms.append(optimizer.grad_norm)
    assert torch.equal(*norms)


@pytest.mark.parametrize("clip", ["active", "paper"])
def test_decay_alone_shrinks_a_neuron_by_its_factor(clip: Any) -> None:
    """Where the loss has no gradient, w <- w (1 - lr c wd), under either way of clipping."""
    model = nn.Linear(6, 3, bias=False).double()
    mask = torch.arange(6) < torch.tensor([1, 2, 3]).unsqueeze(1)
    topology = so.sparsify(model, masks={"weight": mask})
    before = model.weight.detach().clone()
    sgd = SGD(model.parameters(), lr=LR, weight_decay=DECAY)
    optimizer = so.SparseOpt(
        sgd, topology, so.Static(), correction="layer", correct_decay=True, max_grad_norm=1.0, clip=clip
    )
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    c = torch.tensor([[1 / 2], [1.0], [3 / 2]], dtype=torch.float64).sqrt()  # fan-in over its mean
    torch.testing.assert_close(model.weight.detach(), before * (1 - LR * c * DECAY), rtol=1e-12, atol=0)


def test_equal_fan_in_decays_as_the_base_does(build: Build, train: Any) -> None:
    weights = []
    for correct_decay in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
        masks = so.topology.fan_in_masks(model, 0.75, "constant", distribution="uniform")
        topology = so.sparsify(model, masks=masks)
        sgd = SGD(model.parameters(), lr=LR, weight_decay=DECAY)
        train(model, so.SparseOpt(sgd, topology, so.Static(), correct_decay=correct_decay), 3)
        weights.append(topology.parameters["0.weight"].detach())
    assert torch.equal(*weights)


@pytest.mark.parametrize("around", [so.HAM, lambda base: torch.optim.ASGD(base.param_groups)])
def test_optimizers_whose_decay_is_not_known_are_refused(build: Build, around: Any) -> None:
    model, topology = build()
    base = around(SGD(model.parameters(), lr=LR, weight_decay=DECAY))
    with pytest.raises(ValueError, match=r"correct_decay=True .* got (HAM|ASGD)"):
        so.SparseOpt(base, topology, so.Static(), correct_decay=True)
