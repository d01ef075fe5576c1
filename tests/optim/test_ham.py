"""HAM: after the base step, w *= exp(clamp(lr (-alpha sign(w) g - beta), -5, 5))."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]


def matrix(values: list[float]) -> nn.Parameter:
    return nn.Parameter(torch.tensor([values], dtype=torch.float64))


def ham_step(w: float, g: float, *, lr: float, alpha: float, beta: float, maximize: bool = False) -> float:
    """SGD, then HAM, in plain floats."""
    direction = 1 if maximize else -1
    w += direction * lr * g
    sign = (w > 0) - (w < 0)
    return w * math.exp(min(max(lr * (direction * alpha * sign * g - beta), -5), 5))


@pytest.mark.parametrize("maximize", [False, True])
def test_by_hand(maximize: bool) -> None:
    weights, gradients = [1.0, -1.0, 0.05, 0.0, 2.0, -2.0], [0.5, 0.5, 1.0, 0.0, 100.0, 100.0]
    parameter = matrix(weights)
    base = torch.optim.SGD([parameter], lr=0.1, maximize=maximize)
    optimizer = so.HAM(base, alpha=4.0, beta=0.2)
    parameter.grad = torch.tensor([gradients]).double()
    optimizer.step()
    expected = [
        ham_step(w, g, lr=0.1, alpha=4.0, beta=0.2, maximize=maximize)
        for w, g in zip(weights, gradients, strict=True)
    ]
    torch.testing.assert_close(
        parameter.detach(), torch.tensor([expected], dtype=torch.float64), rtol=1e-13, atol=0
    )
    assert expected[3] == parameter[0, 3] == 0  # an exact zero stays


def test_the_sign_is_the_one_after_the_base_step() -> None:
    parameter = matrix([0.05])
    optimizer = so.HAM(torch.optim.SGD([parameter], lr=0.1), alpha=10.0)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # 0.05 -> -0.05, whose sign makes the exponent +1
    assert math.isclose(parameter.item(), -0.05 * math.exp(1.0), rel_tol=1e-12)


def test_the_exponent_is_clamped_at_five() -> None:
    parameter = matrix([1.0, -1.0])
    optimizer = so.HAM(torch.optim.SGD([parameter], lr=1e-3), alpha=1e9)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    expected = [(1 - 1e-3) * math.exp(-5), (-1 - 1e-3) * math.exp(5)]
    torch.testing.assert_close(
        parameter.detach(), torch.tensor([expected], dtype=torch.float64), rtol=1e-12, atol=0
    )


def test_biases_and_norm_layers_are_the_base_optimizers_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    twin = copy.deepcopy(model)
    optimizers = (
        so.HAM(torch.optim.SGD(model.parameters(), lr=0.1)),
        torch.optim.SGD(twin.parameters(), lr=0.1),
    )
    for network, optimizer in zip((model, twin), optimizers, strict=True):
        for parameter in network.parameters():
            parameter.grad = torch.full_like(parameter, 0.3)
        optimizer.step()
    for (name, ours), plain in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, plain) == (name != "0.weight")


def test_alpha_and_beta_belong_to_the_groups() -> None:
    one, two, three = matrix([1.0]), matrix([1.0]), matrix([1.0])
    groups = [{"params": [one]}, {"params": [two], "ham_alpha": 0.0}]
    optimizer = so.HAM(torch.optim.SGD(groups, lr=0.1), alpha=2.0, beta=0.5)
    optimizer.add_param_group({"params": [three]})
    optimizer.param_groups[0]["ham_beta"] = 0.0  # what a schedule does
    for parameter in (one, two, three):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert math.isclose(one.item(), ham_step(1, 1, lr=0.1, alpha=2, beta=0), rel_tol=1e-12)
    assert math.isclose(two.item(), ham_step(1, 1, lr=0.1, alpha=0, beta=0.5), rel_tol=1e-12)
    assert math.isclose(three.item(), ham_step(1, 1, lr=0.1, alpha=2, beta=0.5), rel_tol=1e-12)
    other = so.HAM(torch.optim.SGD([*groups[:1], {"params": [two]}, {"params": [three]}], lr=0.3))
    other.load_state_dict(optimizer.state_dict())
    assert [(g["ham_alpha"], g["ham_beta"], g["lr"]) for g in other.param_groups] == [
        (2.0, 0.0, 0.1),
        (0.0, 0.5, 0.1),
        (2.0, 0.5, 0.1),
    ]


def test_a_state_saved_without_ham_can_be_continued_with_it() -> None:
    parameter = matrix([1.0])
    plain = torch.optim.SGD([parameter], lr=0.1)
    optimizer = so.HAM(torch.optim.SGD([parameter], lr=0.1), alpha=2.0)
    optimizer.load_state_dict(plain.state_dict())
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert math.isclose(parameter.item(), ham_step(1, 1, lr=0.1, alpha=2, beta=0), rel_tol=1e-12)


def test_inside_sparseopt_it_sees_the_corrected_gradient(by_hand: Network) -> None:
    model, topology = by_hand
    ham = so.HAM(torch.optim.SGD(model.parameters(), lr=0.1), alpha=3.0, beta=0.1)
    optimizer = so.SparseOpt(ham, topology, so.Static(), correction="layer")
    before = topology.parameters["0.weight"].detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.7)
    optimizer.step()
    for i, square in enumerate([1 / 2, 1, 3 / 2]):
        for j in range(4):
            gradient = 0.7 * math.sqrt(square) if topology.masks["0.weight"][i, j] else 0.0
            expected = ham_step(before[i, j].item(), gradient, lr=0.1, alpha=3.0, beta=0.1)
            assert math.isclose(
                topology.parameters["0.weight"][i, j].item(), expected, rel_tol=1e-12, abs_tol=0
            )


def test_it_does_not_act_at_an_update_step(build: Callable[..., Network], train: Callable[..., None]) -> None:
    model, topology = build()
    base = so.HAM(torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = so.SparseOpt(base, topology, so.SET(total_steps=50, every=1))
    before = {
        name: (p.detach().clone(), topology.masks[name].clone()) for name, p in topology.parameters.items()
    }
    train(model, optimizer, 1)
    for name, (weight, mask) in before.items():
        stays = mask & topology.masks[name]
        assert torch.equal(topology.parameters[name][stays], weight[stays])


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("closure", [False, True])
def test_it_reads_the_gradient_that_the_base_got_also_where_that_changes_it(
    foreach: bool, closure: bool
) -> None:
    """torch's SGD with foreach and Nesterov's momentum writes into `parameter.grad`."""
    weights, gradients, buffer = [1.0, -1.0, 2.0], [[0.5, 0.5, 1.0], [0.2, -0.4, 0.1]], [0.0, 0.0, 0.0]
    parameter = matrix(weights)
    base = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, nesterov=True, foreach=foreach)
    optimizer = so.HAM(base, alpha=4.0)
    for each in gradients:

        def backward(values: list[float] = each) -> float:
            parameter.grad = torch.tensor([values]).double()
            return 0.0

        if closure:
            optimizer.step(backward)
        else:
            backward()
            optimizer.step()
        buffer = [0.9 * b + g for b, g in zip(buffer, each, strict=True)] if buffer[0] else list(each)
        moved = [w - 0.1 * (g + 0.9 * b) for w, g, b in zip(weights, each, buffer, strict=True)]
        weights = [
            w * math.exp(-0.1 * 4.0 * math.copysign(1, w) * g) for w, g in zip(moved, each, strict=True)
        ]
    torch.testing.assert_close(parameter.detach(), torch.tensor([weights]).double())


def test_a_closure_passes_through() -> None:
    parameter = matrix([1.0])
    optimizer = so.HAM(torch.optim.SGD([parameter], lr=0.1), alpha=2.0)

    def closure() -> float:
        parameter.grad = torch.ones_like(parameter)
        return 7.0

    assert optimizer.step(closure) == 7.0
    assert math.isclose(parameter.item(), ham_step(1, 1, lr=0.1, alpha=2, beta=0), rel_tol=1e-12)


@pytest.mark.parametrize("option", ["alpha", "beta"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_negative_strengths_are_refused(option: str, value: float) -> None:
    base = torch.optim.SGD([matrix([1.0])], lr=0.1)
    with pytest.raises(ValueError, match=f"{option} .*0.*{value}"):
        so.HAM(base, **{option: value})
    assert "ham_alpha" not in base.param_groups[0]


def test_ham_goes_around_an_optimizer_once() -> None:
    with pytest.raises(ValueError, match="has it already"):
        so.HAM(so.HAM(torch.optim.SGD([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1)))
