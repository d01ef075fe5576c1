"""n:m masks and SR-STE, against numbers worked out by hand."""

from collections.abc import Callable

import pytest
import torch
from by_hand import step_with, trained
from torch import Tensor, nn

import sparseopt as so
from sparseopt.methods import Count, LayerView
from sparseopt.topology import generator

# n:m


def test_srste_by_hand() -> None:
    model, optimizer = trained([4, 1, 3, 2], so.SRSTE(total_steps=9, decay=1.0))
    assert model.weight.tolist() == [[4, 0, 3, 0]]
    step_with(model, optimizer, [0, -30, 0, 0])  # cut: 1 - 0.1 (-30 + 1) = 3.9, 2 - 0.1 (2) = 1.8
    assert model.weight.detach().tolist()[0] == pytest.approx([4, 3.9, 0, 0])
    step_with(model, optimizer, [0, 0, 0, 0])
    optimizer._asleep.wake(optimizer.topology)
    assert model.weight.detach().tolist()[0] == pytest.approx([4, 3.9, 3 - 0.3, 1.8 - 0.18])


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(16, 6), lambda: nn.Conv2d(8, 4, 3), lambda: nn.ConvTranspose2d(8, 4, 2)]
)
@pytest.mark.parametrize(
    "rule",
    [
        so.SET(total_steps=40, every=2),
        so.RigL(total_steps=40, every=2),
        so.GSE(total_steps=40, every=2, subset=0.1),
        so.Static(),
    ],
)
def test_nm_holds_in_every_group_at_every_step(make: Callable[[], nn.Module], rule: so.Method) -> None:
    torch.manual_seed(0)
    model = make()
    topology = so.sparsify(model, 0.0)
    before = topology.parameters["weight"].detach().clone()
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, so.NM(rule, n=1, m=4))
    axis = 0 if isinstance(model, nn.ConvTranspose2d) else 1
    for step in range(12):
        groups = topology.masks["weight"].movedim(axis, -1).reshape(-1, 4)
        assert (groups.sum(1) == 1).all()
        if step == 0:
            picked = before.movedim(axis, -1).reshape(-1, 4).abs().argmax(1)
            assert torch.equal(groups.int().argmax(1), picked), "the largest of each group"
        optimizer.zero_grad()
        topology.parameters["weight"].grad = torch.randn(before.shape, generator=generator(0, step))
        optimizer.step()


def test_nm_of_gse_looks_at_a_random_subset_alone() -> None:
    weight = torch.zeros(64, 64, dtype=torch.float64)
    weight[:, ::2] = torch.rand(64, 32, generator=generator(1), dtype=torch.float64) + 1
    grad = torch.rand(64, 64, generator=generator(2), dtype=torch.float64)

    def grown(rule: so.Method) -> float:
        new = so.NM(rule).next_mask(weight != 0, weight, grad, 0.5, generator(0, 1))
        assert int(new.sum()) == 2048
        return grad[new & (weight == 0)].mean().item()

    few, everything = (grown(so.GSE(total_steps=9, subset=subset)) for subset in (0.5, 1e9))
    assert few < everything - 0.03


def test_nm_refuses_a_rule_that_has_a_choice_of_its_own() -> None:
    class Own(so.RigL):
        def choose(self, view: LayerView, count: Count) -> Tensor:
            return view.mask

    with pytest.raises(ValueError, match="Own has a choice of its own"):
        so.NM(Own(total_steps=9))


def test_the_groups_of_a_grouped_transposed_convolution_are_of_one_neuron() -> None:
    narrow, wide = nn.ConvTranspose2d(8, 8, 1, groups=4), nn.ConvTranspose2d(16, 8, 1, groups=4)
    topology = so.sparsify(nn.Sequential(narrow, wide), masks="2:4")
    assert topology.fan_in("1.weight").tolist() == [2] * 8
    assert topology.sparsity("0.weight") == 0.0, "two inputs a neuron make no group of four"


@pytest.mark.parametrize("method", [so.SRigL(total_steps=9), so.NM(so.RigL(total_steps=9))])
def test_a_method_that_decides_the_fan_in_is_refused_under_weight_norm(method: so.Method) -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
    topology = so.sparsify(model, 0.5)
    with pytest.raises(ValueError, match=r"weight_norm, which needs a weight in every slice.*exclude"):
        so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, method)


def test_layers_that_do_not_divide_stay_dense_under_nm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    topology = so.sparsify(model, 0.0)
    so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, so.SRSTE(total_steps=9))
    assert (topology.sparsity("0.weight"), topology.sparsity("1.weight")) == (0.0, 0.5)
