"""GMP, GraNet and AC/DC against numbers worked out by hand, in float64, from their papers."""

from typing import Any

import pytest
import torch
from by_hand import chosen, step_with, tensor, trained, views
from torch import Tensor, nn

import sparseopt as so
from sparseopt.methods import Count, Memory

# GMP: s_t = s_f + (s_i - s_f) (1 - (t - t_0) / (n every))^3


def test_gmp_follows_the_cubic_of_its_paper() -> None:
    method = so.GMP(total_steps=100, sparsity=0.8, start=0.2, begin=0.1, until=0.5, every=10)
    assert [t for t in range(1, 101) if method.due(t)] == [10, 20, 30, 40, 50]
    for k, step in enumerate((10, 20, 30, 40, 50)):
        assert method.sparsity_at(step) == pytest.approx(0.8 + (0.2 - 0.8) * (1 - k / 4) ** 3)
    assert (method.sparsity_at(5), method.sparsity_at(80)) == (0.2, pytest.approx(0.8))
    assert so.GMP(total_steps=100, sparsity=0.8, every=30, until=0.5).sparsity_at(30) == pytest.approx(0.8), (
        "an end between two updates: the last update before it prunes all"
    )


def test_gmp_reaches_its_sparsity_also_in_fewer_steps_than_lie_between_two_updates() -> None:
    method = so.GMP(total_steps=50, sparsity=0.8, every=100)
    assert [t for t in range(1, 51) if method.due(t)] == [37]  # 0.75 * 50, whole steps
    assert (method.sparsity_at(36), method.sparsity_at(37)) == (0.0, pytest.approx(0.8))
    model, optimizer = trained([4, 3, 2, 1], so.GMP(total_steps=4, every=100, sparsity=0.5))
    for _ in range(4):
        step_with(model, optimizer, [0, 0, 0, 0])
    assert model.weight.tolist() == [[4, 3, 0, 0]]


@pytest.mark.parametrize("kind", [so.GMP, so.GraNet])
def test_where_there_is_no_time_for_a_curve_pruning_is_done_at_the_first_step(kind: type[so.GMP]) -> None:
    assert [t for t in range(1, 5) if so.GMP(total_steps=1000, sparsity=0.5, until=0.0).due(t)] == [1]
    model, optimizer = trained([4, 3, 2, 1], kind(total_steps=1, sparsity=0.5, start=0.0))
    step_with(model, optimizer, [0, 0, 0, 0])
    assert model.weight.tolist() == [[4, 3, 0, 0]]


def test_gmp_goes_from_what_each_layer_has_to_what_it_ends_with() -> None:
    method = so.GMP(total_steps=100, sparsity=0.75, start=0.25, every=10, until=0.4)
    layers = views({"a": torch.ones(1, 16), "b": torch.cat([torch.ones(1, 8), torch.zeros(1, 8)], 1)})
    memory = Memory()
    for k, step in enumerate((10, 20, 30, 40), start=1):
        left = (1 - k / 4) ** 3
        counts = method.counts(layers, step, memory)
        assert counts["a"].active == round(4 + 12 * left)
        assert counts["b"].active == round(4 + 4 * left)


def test_gmp_refuses_a_topology_it_could_not_prune_to_its_end() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 64), nn.Linear(64, 8))
    topology = so.sparsify(model, 0.5, distribution="erk")
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        ValueError, match=r"GMP only prunes, and '1.weight' begins with .* the same distribution"
    ):
        so.SparseOpt(sgd, topology, so.GMP(total_steps=9, start=0.5, sparsity=0.52))
    so.SparseOpt(sgd, topology, so.GMP(total_steps=9, start=0.5, sparsity=0.52, distribution="erk"))


class Sometimes(nn.Module):
    """Its second layer is skipped at every third step, as layers are under LayerDrop."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.calls = nn.Linear(8, 8), nn.Linear(8, 8), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.a(x) if self.calls % 3 == 0 else self.b(self.a(x))


@pytest.mark.parametrize(
    "method",
    [
        so.GMP(total_steps=12, every=3, until=1.0, sparsity=0.75),
        so.GMP(total_steps=12, every=3, until=1.0, sparsity=0.75, scope="global"),
        so.GraNet(total_steps=12, every=3, start=0.0, sparsity=0.75),
        so.ACDC(total_steps=12, warmup=0.25, phase=0.25, sparsity=0.75),
        so.AnnealedTopK(total_steps=12, every=3, sparsity=0.75, minimum=0),
        so.TopKAST(total_steps=12, every=3, sparsity=0.75, backward_sparsity=0.5),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_layer_that_the_loss_does_not_reach_is_pruned_with_the_others(method: so.Method) -> None:
    torch.manual_seed(0)
    model = Sometimes()
    topology = so.sparsify(model, 0.0)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.01), topology, method)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    assert topology.active() == 32
    assert 0 < topology.active("b.weight") < 32


def test_a_frozen_layer_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    topology = so.sparsify(model, 0.0)
    method = so.GMP(total_steps=4, every=1, until=1.0, sparsity=0.75)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.01), topology, method)
    model[1].requires_grad_(False)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    assert (topology.active("0.weight"), topology.active("1.weight")) == (16, 64)


def test_gmp_prunes_the_smallest_of_each_layer_or_of_the_network() -> None:
    weights = {"a": tensor([9, -8, 7, 6]), "b": tensor([-1, 2, 3, 0.5])}
    at_once: dict[str, Any] = {"total_steps": 10, "every": 10, "until": 1.0, "sparsity": 0.5}
    assert chosen(so.GMP(**at_once), views(weights), 10) == {"a": [[1, 1, 0, 0]], "b": [[0, 1, 1, 0]]}
    together = so.GMP(**at_once, scope="global")
    assert chosen(together, views(weights), 10) == {"a": [[1, 1, 1, 0]], "b": [[0, 0, 1, 0]]}, (
        "the four largest would all lie in a: b keeps its largest, so that it passes something on"
    )


def test_gmp_never_takes_back_what_is_pruned() -> None:
    model, optimizer = trained([4, 3, 2, 1], so.GMP(total_steps=4, every=1, until=1.0, sparsity=0.5))
    counts = []
    for gradient in (0, -100, -100, -100):  # once pruned, the smallest weight does not grow
        step_with(model, optimizer, [0, 0, 0, gradient])
        counts.append(optimizer.topology.active())
    # 2 + 2 (1 - k/4)^3 for k = 1..4: 2.84, 2.25, 2.03, 2
    assert counts == [3, 2, 2, 2]
    assert model.weight.tolist() == [[4, 3, 0, 0]]


# GraNet: prune to the cubic's count, then regrow a fraction of it by gradient


def test_granet_prunes_then_regenerates() -> None:
    method = so.GraNet(
        total_steps=10, every=5, sparsity=0.5, start=0.0, drop_fraction=0.5, prune_until=0.5, scope="layer"
    )
    layers = views({"a": tensor([8, 7, 6, 5, 4, 3, 2, 1])}, {"a": tensor([0, 0, 0, 0, 1, 2, 9, 3])})
    # step 5: sparsity 0.5, 4 of 8. Fraction 0.5/2 (1 + cos(pi 5/10)) = 0.25: 1 of 4 goes (5), the largest gradient comes
    assert method.counts(layers, 5, Memory()) == {"a": Count(3, 4)}
    assert chosen(method, layers, 5) == {"a": [[1, 1, 1, 0, 0, 0, 1, 0]]}


@pytest.mark.parametrize(
    ("options", "updates"),
    [
        ({}, [2, 4, 6, 8]),  # pruned at 2, 4, 6 of 7; regrown below 10
        ({"prune_until": 1.0}, [2, 4, 6, 8, 10]),
        ({"until": 0.5}, [2, 4, 6]),  # pruning goes on after the regrowth
        ({"begin": 0.1}, [1, 3, 5, 7, 9]),
        ({"every": 100}, [7]),
    ],
)
def test_granet_prunes_to_its_sparsity_whatever_its_schedule(
    options: dict[str, Any], updates: list[int]
) -> None:
    method = so.GraNet(**{"total_steps": 10, "every": 2, "sparsity": 0.8} | options)
    assert [t for t in range(1, 11) if method.due(t)] == updates
    assert method.sparsity_at(updates[-1]) == pytest.approx(0.8)
    fractions = [method.drop_fraction_at(t) for t in range(11)]
    assert fractions == sorted(fractions, reverse=True)


# AC/DC


def test_acdc_alternates_and_ends_compressed() -> None:
    method = so.ACDC(total_steps=100, sparsity=0.5, warmup=0.1, phase=0.2, until=0.9)
    assert method.switches == (10, 30, 50, 70, 90)
    assert [method.compressed(t) for t in (9, 10, 29, 30, 50, 70, 90, 100)] == [
        *(False, True, True, False, True, False, True, True)
    ]
    uneven = so.ACDC(total_steps=100, sparsity=0.5, warmup=0.1, phase=0.2, until=0.75)
    assert uneven.switches == (10, 30, 75), (
        "dense from 30: a phase from 50 to 70 would leave no whole dense one before 75"
    )
    assert sum(method.cost_at(t, 0.3) for t in range(1, 101)) == pytest.approx(49 + 51 * 0.3)


def test_what_acdc_decompresses_starts_at_zero() -> None:
    model, optimizer = trained(
        [4, 3, 2, 1], so.ACDC(total_steps=10, sparsity=0.5, warmup=0.1, phase=0.2, until=0.5)
    )
    assert optimizer.method.switches == (1, 3, 5)  # pyright: ignore[reportAttributeAccessIssue]
    seen = []
    for gradient in (0, -10, 0, -10, 0):
        step_with(model, optimizer, [0, 0, gradient, gradient])
        seen.append(model.weight.detach().tolist()[0])
    assert seen == [[4, 3, 0, 0], [4, 3, 0, 0], [4, 3, 0, 0], [4, 3, 1, 1], [4, 3, 0, 0]]
