"""Terms that methods add to the gradient: neither corrected nor clipped, and on the devices of the parameters."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so
from sparseopt.methods.view import Memory
from sparseopt.optim.asleep import Asleep

FAN_INS = (10, 50, 100, 400)


def uneven(method: so.Method, masks: dict[str, Tensor] | None = None, **options: Any) -> so.SparseOpt:
    """A layer whose neurons differ in fan-in, before BatchNorm, with all weights 10 and no gradient from the loss."""
    layer = nn.Linear(400, len(FAN_INS), bias=False)
    nn.init.constant_(layer.weight, 10.0)
    model = nn.Sequential(layer, nn.BatchNorm1d(len(FAN_INS), affine=False))
    mask = torch.arange(400) < torch.tensor(FAN_INS).unsqueeze(1)
    topology = so.sparsify(model, masks=masks or {"0.weight": mask})
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = so.SparseOpt(sgd, topology, method, **options)
    topology.parameters["0.weight"].grad = torch.zeros(len(FAN_INS), 400)
    return optimizer


@pytest.mark.parametrize(
    "options",
    [{"correction": "none"}, {"correction": "layer"}, {"correction": "layer", "max_grad_norm": 1e-3}],
)
def test_the_noise_and_the_l1_term_of_deepr_are_what_its_formula_says(options: dict[str, Any]) -> None:
    optimizer = uneven(so.DeepR(total_steps=9, l1=0.0, temperature=2.0), **options)
    optimizer.step()
    weight = optimizer.topology.parameters["0.weight"].detach()
    for row, fan_in in zip(weight, FAN_INS, strict=True):
        moved = row[:fan_in] - 10
        assert moved.std().item() == pytest.approx(math.sqrt(2 * 0.01 * 2.0), rel=4 / math.sqrt(2 * fan_in))
    optimizer = uneven(so.DeepR(total_steps=9, l1=0.5), **options)
    optimizer.step()
    weight = optimizer.topology.parameters["0.weight"].detach()
    mask = optimizer.topology.masks["0.weight"]
    torch.testing.assert_close(weight[mask], torch.full_like(weight[mask], 10 - 0.01 * 0.5))


def test_the_learning_rate_may_be_a_tensor() -> None:
    method = so.DeepR(total_steps=9, l1=0.0, temperature=2.0)
    plain, other = uneven(method), uneven(method)
    other.param_groups[0]["lr"] = torch.tensor(0.01)
    for optimizer in (plain, other):
        optimizer.step()
    weights = [each.topology.parameters["0.weight"] for each in (plain, other)]
    torch.testing.assert_close(*weights)
    still = uneven(method)
    still.param_groups[0]["lr"] = 0.0
    still.step()
    mask = still.topology.masks["0.weight"]
    assert (still.topology.parameters["0.weight"].detach()[mask] == 10).all(), "a warm-up may begin at 0"


@pytest.mark.parametrize("correction", ["auto", "layer", "global", "overall", "measured", "none"])
@pytest.mark.parametrize("clip", ["active", "paper"])
def test_inactive_weights_learn_also_in_a_neuron_that_has_no_active_one(correction: str, clip: str) -> None:
    everything = {"0.weight": torch.ones(len(FAN_INS), 400).bool()}
    method = so.TopKAST(total_steps=9, every=100, sparsity=0.9, backward_sparsity=0.0, penalty=0.0)
    optimizer = uneven(method, everything, correction=correction, clip=clip, max_grad_norm=1e9)
    topology = optimizer.topology
    assert topology.fan_in("0.weight").tolist() == [160, 0, 0, 0]
    topology.parameters["0.weight"].grad = torch.ones(len(FAN_INS), 400)
    optimizer.step()
    optimizer._asleep.wake(topology)
    assert (topology.parameters["0.weight"].detach()[1:] < 10).all()


def test_weights_that_rest_are_not_decayed() -> None:
    everything = {"0.weight": torch.ones(len(FAN_INS), 400).bool()}
    optimizer = uneven(so.TopKAST(9, sparsity=0.9, backward_sparsity=0.5, penalty=0.0), everything)
    optimizer.param_groups[0]["weight_decay"] = 0.1
    optimizer.step()
    optimizer._asleep.wake(optimizer.topology)
    optimizer._asleep.recall(optimizer.topology)
    weight = optimizer.topology.parameters["0.weight"].detach()
    assert sorted({round(value, 4) for value in weight.flatten().tolist()}) == [9.99, 10.0]


def test_what_a_method_remembers_follows_the_parameters() -> None:
    memory = Memory(layers={"weight": {"momentum": torch.zeros(3)}})
    memory.follow({"weight": torch.empty(3, device="meta")})
    assert memory.of("weight")["momentum"].device.type == "meta"
    model = nn.Linear(4, 4)
    topology = so.sparsify(model, 0.0)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, so.SRSTE(total_steps=9))
    asleep: Asleep = copy.deepcopy(optimizer._asleep)
    topology.parameters["weight"] = nn.Parameter(torch.empty(4, 4, device="meta"))
    asleep.follow(topology)
    assert asleep.values["weight"].device.type == asleep.awake["weight"].device.type == "meta"


def test_soft_mest_gives_back_also_where_the_gradient_was_not_finite_then() -> None:
    class Careful(torch.optim.SGD):
        """Skips steps that are not finite."""

        def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            if all(p.grad is None or p.grad.isfinite().all() for p in self.param_groups[0]["params"]):
                super().step()

    model = nn.Linear(20, 10)
    topology = so.sparsify(model, 0.5)
    method = so.MEST(total_steps=10, every=2, until=0.5, drop_fraction=0.3, soft=True)
    optimizer = so.SparseOpt(Careful(model.parameters(), lr=0.1), topology, method)
    for step in range(1, 8):
        optimizer.zero_grad()
        scale = float("nan") if step == 5 else 1.0  # the step at which the surplus goes
        (model(torch.randn(4, 20)).square().mean() * scale).backward()
        optimizer.step()
    assert topology.active() == 100
