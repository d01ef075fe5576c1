"""The methods of the field against numbers worked out by hand, in float64, from their papers."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so
from sparseopt.methods import Count, LayerView, Memory
from sparseopt.topology import generator


def tensor(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def views(weights: Mapping[str, Tensor], grads: Mapping[str, Tensor] | None = None) -> dict[str, LayerView]:
    """Layers whose active weights are those that are not zero."""
    return {
        name: LayerView(
            weight != 0, weight, None if grads is None else grads[name], generator(0, 1, name), memory={}
        )
        for name, weight in weights.items()
    }


def chosen(method: so.Method, layers: dict[str, LayerView], step: int) -> dict[str, list[list[int]]]:
    counts = method.counts(layers, step, Memory())
    return {name: method.choose(view, counts[name]).int().tolist() for name, view in layers.items()}


def trained(
    weight: Sequence[float], method: so.Method, *, lr: float = 0.1, mask: list[int] | None = None
) -> tuple[nn.Linear, so.SparseOpt]:
    """One neuron with these incoming weights, trained by plain SGD without correction."""
    model = nn.Linear(len(weight), 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(tensor(weight))
    active = torch.tensor([mask or [1] * len(weight)]).bool()
    topology = so.sparsify(model, masks={"weight": active})
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    return model, so.SparseOpt(sgd, topology, method, correction="none")


def step_with(model: nn.Linear, optimizer: so.SparseOpt, gradient: Sequence[float]) -> None:
    model.weight.grad = tensor(gradient)
    optimizer.step()


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
    imagenet = so.ACDC(total_steps=100, sparsity=0.9, warmup=0.1, phase=0.05, until=0.85)
    assert imagenet.switches[-1] == 80, "the sixteenth switch, at 85, would begin a dense phase"
    assert sum(method.cost_at(t, 0.3) for t in range(1, 101)) == pytest.approx(49 + 51 * 0.3)


def test_what_acdc_decompresses_starts_at_zero() -> None:
    model, optimizer = trained(
        [4, 3, 2, 1], so.ACDC(total_steps=10, sparsity=0.5, warmup=0.1, phase=0.2, until=0.6)
    )
    assert optimizer.method.switches == (1, 3, 5)  # pyright: ignore[reportAttributeAccessIssue]
    seen = []
    for gradient in (0, -10, 0, -10, 0):
        step_with(model, optimizer, [0, 0, gradient, gradient])
        seen.append(model.weight.detach().tolist()[0])
    assert seen == [[4, 3, 0, 0], [4, 3, 0, 0], [4, 3, 0, 0], [4, 3, 1, 1], [4, 3, 0, 0]]


# SRigL


def test_srigl_keeps_one_fan_in_and_ablates() -> None:
    weight = tensor([5, 4, 0, 0], [3, 2, 0, 0], [0.1, 0.2, 0, 0])
    grad = tensor([0, 0, 0, 0], [0, 0, 7, 0], [0, 0, 0, 0])
    # 6 active, fraction 1/3: 0.1 and 0.2 go; salient: 5 4 3 2, and by gradient 7 and (a tie of zeros) the first inactive of row 0
    method = so.SRigL(total_steps=100, gamma_sal=0.5)
    new = method.next_mask(weight != 0, weight, grad, 1 / 3)
    # neuron 2 has 0 salient weights of the 0.5 * 2 it needs: ablated. 6 weights for 2 neurons: fan-in 3.
    assert new.int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]]


def test_srigl_starts_at_constant_fan_in_and_stays_there() -> None:
    torch.manual_seed(0)
    model = nn.Linear(20, 7, bias=False)
    topology = so.sparsify(model, 0.7, seed=3)  # 42 of 140: 6 each
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = so.SparseOpt(sgd, topology, so.SRigL(total_steps=40, every=2, gamma_sal=0.6, until=1.0))
    assert topology.fan_in("weight").tolist() == [6] * 7
    for step in range(39):
        optimizer.zero_grad()
        model(torch.randn(8, 20, generator=generator(0, step))).pow(2).sum().backward()
        optimizer.step()
        fan_in = topology.fan_in("weight")
        assert len(set(fan_in[fan_in > 0].tolist())) == 1
        assert int(fan_in.max()) == min(42 // int((fan_in > 0).sum()), 20)


# MEST


def test_mest_spares_a_small_weight_that_moves() -> None:
    weight, grad = tensor([1, 0.1, 0.3, 0.2]), tensor([0, 5, 0, 0])
    mask = torch.ones(1, 4).bool()
    wider = torch.cat([mask, torch.zeros(1, 4).bool()], 1)
    weight, grad = (torch.cat([each, torch.zeros(1, 4, dtype=torch.float64)], 1) for each in (weight, grad))
    new = so.MEST(total_steps=9, lam=0.1).next_mask(wider, weight, grad, 0.25, generator(0, 1, "w"))
    # scores 1, 0.6, 0.3, 0.2: the last goes. With lam = 0 it would be the second.
    assert new[0, :3].all()
    old = so.MEST(total_steps=9, lam=0.0).next_mask(wider, weight, grad, 0.25, generator(0, 1, "w"))
    assert old[0, [0, 2, 3]].all()


def test_in_srigl_as_many_salient_weights_as_asked_for_are_enough() -> None:
    weight = torch.zeros(2, 100, dtype=torch.float64)
    weight[0, :50], weight[1, :50] = 1.0, torch.arange(50) + 2.0
    grad = torch.zeros(2, 100, dtype=torch.float64)
    grad[0, 50:65], grad[1, 50:70] = 2.0, 3.0  # of 35 that grow, 15 are the first neuron's: 0.3 of its 50
    view = LayerView(weight != 0, weight, grad)
    assert so.SRigL(total_steps=9, gamma_sal=0.3)._left(view, 65, 100).tolist() == [True, True]
    assert so.SRigL(total_steps=9, gamma_sal=0.62)._left(view, 65, 100).tolist() == [False, True]


def test_soft_mest_grows_before_it_drops_and_gives_back() -> None:
    method = so.MEST(
        total_steps=10, every=2, until=0.6, drop_fraction=0.5, drop_decay="constant", lam=0.0, soft=True
    )
    model, optimizer = trained([4, 3, 2, 1, 9, 9, 9, 9], method, mask=[1, 1, 1, 1, 0, 0, 0, 0])
    active = []
    for _ in range(10):
        step_with(model, optimizer, [0] * 8)
        active.append(optimizer.topology.active())
    assert active == [4, 6, 6, 6, 6, 4, 4, 4, 4, 4]
    assert model.weight.detach()[0, :4].tolist() == [4, 3, 2, 1], "the grown ones stayed at 0, and went again"


# SNFS


def test_snfs_gives_more_connections_to_the_layer_that_moves_more() -> None:
    method = so.SNFS(total_steps=100, drop_fraction=0.5, drop_decay="constant", momentum=0.5)
    layers = views(
        {"a": tensor([4, 3, 2, 1, 0, 0, 0, 0]), "b": tensor([4, 3, 2, 1, 0, 0, 0, 0])},
        {"a": tensor([3, 3, 3, 3, 1, 9, 2, 8]), "b": tensor([1, 1, 1, 1, 5, 0, 0, 0])},
    )
    method.counts(layers, 0, Memory())
    for view in layers.values():
        method.watch(view, 1)
        method.watch(view, 2)
        assert view.grad is not None
        assert torch.equal(view.memory["momentum"], 0.75 * view.grad)  # 0.5 (0.5 g) + 0.5 g
    # each drops 2 of 4; of the 4 dropped, a gets 3/(3+1): 3, b gets 1
    assert method.counts(layers, 10, Memory()) == {"a": Count(2, 5), "b": Count(2, 3)}
    # a: largest |M| among the inactive: 9, 8, and 3 (the dropped weight 2 before the dropped 1, by index)
    assert chosen(method, layers, 10) == {"a": [[1, 1, 1, 0, 0, 1, 0, 1]], "b": [[1, 1, 0, 0, 1, 0, 0, 0]]}


# DSR


def test_dsr_moves_weights_between_layers_and_adapts_its_threshold() -> None:
    method = so.DSR(total_steps=100, threshold=0.5, drop_fraction=0.25, tolerance=0.1)
    layers = views({"a": tensor([1, 2, 3, 4, 0, 0, 0, 0]), "b": tensor([0.1, 0.2, 0.3, 4, 0, 0, 0, 0])})
    memory = Memory()
    counts = method.counts(layers, 10, memory)
    # below 0.5: three of b. Kept 4 and 1: of 3 new ones a gets 2.4, b 0.6: by largest remainder 2 and 1
    assert counts == {"a": Count(4, 6), "b": Count(1, 2)}
    assert memory.numbers["threshold"] == 0.25  # 3 went, 2 were aimed at
    memory.numbers["threshold"] = 0.01
    assert method.counts(layers, 10, memory) == {"a": Count(4, 4), "b": Count(4, 4)}
    assert memory.numbers["threshold"] == 0.02


# DeepR


def test_in_deepr_a_flip_kills_and_the_count_stays() -> None:
    model, optimizer = trained(
        [1, -1, 0.05, 0, 0, 0], so.DeepR(total_steps=9, l1=0.0), mask=[1, 1, 1, 0, 0, 0]
    )
    step_with(model, optimizer, [1, -1, 1, 0, 0, 0])  # to 0.9, -0.9, -0.05: the third flips
    mask = optimizer.topology.masks["weight"][0]
    assert mask[:2].all()
    assert not model.weight.detach()[0, 2]
    assert int(mask.sum()) == 3
    assert model.weight.detach()[0, :2].tolist() == pytest.approx([0.9, -0.9])


@pytest.mark.parametrize("places", [3, 4], ids=["full", "one-free"])
def test_in_deepr_a_weight_that_flipped_begins_at_zero_also_where_it_is_drawn_again(places: int) -> None:
    model = nn.Linear(places, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(tensor([1, -1, 0.5, 0][:places]))
    topology = so.sparsify(model, masks={"weight": model.weight != 0})
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = so.SparseOpt(sgd, topology, so.DeepR(9, l1=0.0), correction="none")
    step_with(model, optimizer, [20, -20, 20, 0][:places])  # to -1, 1, -1.5: all three flip
    assert topology.active() == 3
    assert not model.weight.detach().any()
    assert not sgd.state[model.weight]["momentum_buffer"].any()


def test_the_draws_of_deepr_are_independent() -> None:
    size = 2000
    drawn: dict[str, Tensor] = {}

    class Watched(so.DeepR):
        def term(self, view: LayerView, step: int) -> Tensor | None:
            drawn["noise"] = torch.randn(view.mask.shape, generator=view.generator)
            return super().term(view, step)

        def grow_score(
            self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None
        ) -> Tensor:
            drawn["growth"] = super().grow_score(weight, grad, generator)
            return drawn["growth"]

    method = Watched(total_steps=9, l1=0.0, temperature=1.0)
    model, optimizer = trained([1.0] * size, method, mask=[1] * (size // 2) + [0] * (size // 2))
    step_with(model, optimizer, [20.0] * size)
    pair = torch.stack([drawn["noise"].flatten(), drawn["growth"].flatten()])
    assert abs(torch.corrcoef(pair)[0, 1].item()) < 0.1
    assert abs(torch.corrcoef(pair.abs())[0, 1].item()) < 0.1


def test_in_deepr_a_dormant_place_has_a_sign_for_life() -> None:
    method = so.DeepR(total_steps=100, l1=0.0)
    model, optimizer = trained([1.0] + [0.0] * 40, method, mask=[1] * 21 + [0] * 20)
    signs = optimizer.memory.layers["weight"]["sign"][0]
    assert signs[0] == 1
    assert {int(sign) for sign in signs[1:]} == {-1, 1}
    down = [0.0] + [1.0] * 40  # every weight but the first goes down
    step_with(model, optimizer, down)
    mask, kept = optimizer.topology.masks["weight"][0], torch.zeros(41).bool()
    kept[1:21] = signs[1:21] < 0
    assert mask[kept].all(), "those of negative sign go on"
    assert model.weight.detach()[0, kept].tolist() == pytest.approx([-0.1] * int(kept.sum()))
    assert torch.equal(optimizer.memory.layers["weight"]["sign"][0], signs)


def test_the_l1_term_and_the_noise_of_deepr() -> None:
    model, optimizer = trained([1, -1], so.DeepR(total_steps=9, l1=0.5), lr=0.1)
    step_with(model, optimizer, [0, 0])
    assert model.weight.detach().tolist()[0] == pytest.approx([0.95, -0.95])
    size, lr, temperature = 4000, 0.01, 2.0
    model, optimizer = trained([10.0] * size, so.DeepR(total_steps=9, l1=0.0, temperature=temperature), lr=lr)
    step_with(model, optimizer, [0.0] * size)
    assert (model.weight.detach() - 10).std().item() == pytest.approx(
        math.sqrt(2 * lr * temperature), rel=0.05
    )


# Top-KAST


def test_topkast_by_hand() -> None:
    method = so.TopKAST(total_steps=9, sparsity=0.75, backward_sparsity=0.5, penalty=0.0)
    model, optimizer = trained([4, 3, 2, 1], method)
    assert model.weight.tolist() == [[4, 0, 0, 0]]  # A is 4, B is 4 and 3
    assert optimizer.learning("weight").tolist() == [[True, True, False, False]]
    step_with(model, optimizer, [10, -15, -90, -90])  # B moves to 3 and 4.5; outside B nothing does
    assert model.weight.tolist() == [[0, 4.5, 0, 0]]
    assert optimizer.learning("weight").tolist() == [[True, True, False, False]]
    step_with(model, optimizer, [0, 25, 0, 0])  # 4.5 falls to 2
    assert model.weight.tolist() == [[3, 0, 0, 0]]


@pytest.mark.parametrize(("norm", "expected"), [(2, [4 - 0.4, 3 - 1.2]), (1, [4 - 0.1, 3 - 0.4])])
def test_the_exploration_penalty_is_stronger_outside_the_forward_set(
    norm: int, expected: list[float]
) -> None:
    method = so.TopKAST(  # D = 1/4: outside A four times as strong
        total_steps=9,
        sparsity=0.75,
        backward_sparsity=0.5,
        penalty=1.0,
        penalty_norm=norm,  # pyright: ignore[reportArgumentType]
    )
    model, optimizer = trained([4, 3, 2, 1], method)
    step_with(model, optimizer, [0, 0, 0, 0])
    optimizer._asleep.wake(optimizer.topology)
    optimizer._asleep.recall(optimizer.topology)
    assert model.weight.detach()[0].tolist() == pytest.approx([*expected, 2, 1])


def test_in_topkast_what_falls_out_of_the_backward_set_rests_and_may_return() -> None:
    method = so.TopKAST(total_steps=9, sparsity=0.75, backward_sparsity=0.5, penalty=0.0)
    model, optimizer = trained([4, 3, 2, 1], method)

    def learning() -> list[int]:
        return optimizer.learning("weight")[0].int().tolist()

    step_with(model, optimizer, [0, 15, 0, 0])  # 3 falls to 1.5: the resting 2 comes in its place
    assert learning() == [1, 0, 1, 0]
    step_with(model, optimizer, [0, 90, 15, 0])  # what rests does not move; 2 falls to 0.5
    assert learning() == [1, 1, 0, 0]
    step_with(model, optimizer, [30, 0, 0, 0])  # 4 falls to 1
    assert model.weight.tolist() == [[0, 1.5, 0, 0]]


def test_what_rests_is_saved(tmp_path: Path) -> None:
    def made() -> tuple[nn.Linear, so.SparseOpt]:
        return trained([4, 3, 2, 1], so.TopKAST(9, sparsity=0.75, backward_sparsity=0.5, penalty=0.0))

    gradients = [[0, 15, 0, 0], [0, 0, 15, 0], [30, 0, 0, 0]]
    model, optimizer = made()
    step_with(model, optimizer, gradients[0])
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "c.pt")
    saved = torch.load(tmp_path / "c.pt", weights_only=True)
    other, resumed = made()
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    for gradient in gradients[1:]:
        step_with(model, optimizer, gradient)
        step_with(other, resumed, gradient)
        assert torch.equal(model.weight, other.weight)
    assert model.weight.tolist() == [[0, 1.5, 0, 0]]


# Annealed top-k


def test_annealed_topk_by_hand() -> None:
    model, optimizer = trained([4, 3, 2, 1], so.AnnealedTopK(total_steps=8, sparsity=0.5, until=0.5))
    active, weights = [], []
    for gradient in ([0, 0, 0, -15], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, -90, 0], [0, 0, 0, 0]):
        step_with(model, optimizer, gradient)
        active.append(optimizer.topology.active())
        weights.append(model.weight.detach().tolist()[0])
    # density 1 - t/8 to 1/2 at t = 4: 3.5, 3, 2.5, 2 of 4, rounded to even halves
    assert active == [4, 3, 2, 2, 2, 2]
    assert weights[1] == [4, 3, 0, 2.5]
    assert weights[3] == [4, 3, 0, 0]
    assert weights[4] == [4, 0, 9, 0], "a weight that was zero learns, and one step may bring it in"


def test_annealed_topk_leaves_every_neuron_its_largest_inputs() -> None:
    weight = {"a": tensor([9, 8, 7, 6], [1, 0.5, 0.4, 0.3])}
    expected = {
        0: [[1, 1, 1, 1], [0, 0, 0, 0]],
        1: [[1, 1, 1, 0], [1, 0, 0, 0]],
        4: [[1, 1, 0, 0], [1, 1, 0, 0]],  # 4 weights for 2 neurons are 2 each
    }
    for minimum, mask in expected.items():
        method = so.AnnealedTopK(total_steps=8, sparsity=0.5, minimum=minimum)
        assert chosen(method, views(weight), 8) == {"a": mask}
    assert so.AnnealedTopK(total_steps=8).minimum == 4


def test_the_top_is_taken_after_the_last_step_too() -> None:
    for method in (so.SRSTE(total_steps=9), so.TopKAST(total_steps=9), so.AnnealedTopK(total_steps=9)):
        assert [t for t in range(10) if method.due(t)] == list(range(10))
    assert so.AnnealedTopK(total_steps=10, every=7, until=1.0).due(10), "where the sparsity is reached"
    assert not so.TopKAST(total_steps=10, until=0.5).due(6)


# GSE


def test_gse_grows_the_largest_gradients_of_a_random_subset() -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.zeros(20, 20, dtype=torch.float64)
    weight[0] = torch.rand(20, generator=draw, dtype=torch.float64) + 1
    grad = torch.rand(20, 20, generator=draw, dtype=torch.float64)
    everything = so.GSE(total_steps=9, subset=1e9).next_mask(weight != 0, weight, grad, 0.5, generator(0, 1))
    rigl = so.RigL(total_steps=9).next_mask(weight != 0, weight, grad, 0.5)
    grown = rigl & (weight == 0)
    assert (everything & grown).sum() >= grown.sum() - 10  # a dropped weight may return under RigL, not here
    ranks = []
    for seed in range(200):
        new = so.GSE(total_steps=9, subset=1.0).next_mask(weight != 0, weight, grad, 0.5, generator(seed, 1))
        assert int(new.sum()) == 20
        ranks.append(grad[new & (weight == 0)].mean().item())
    # the 10 largest of 20 uniform draws have the mean (20 + 11) / 2 / 21
    assert sum(ranks) / len(ranks) == pytest.approx(15.5 / 21, abs=0.03)


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: so.NM(so.GMP(total_steps=9)), "GMP does not keep the counts that n:m fixes"),
        (lambda: so.NM(so.RigL(total_steps=9), n=4, m=4), "n:m needs 1 <= n < m, got 4:4"),
        (lambda: so.GMP(total_steps=9, sparsity=1.0), r"sparsity must be in \[0, 1\), got 1.0"),
        (
            lambda: so.GMP(total_steps=9, sparsity=0.5, start=0.6),
            r"start must be in \[0, sparsity=0.5\], got 0.6",
        ),
        (
            lambda: so.TopKAST(total_steps=9, sparsity=0.5, backward_sparsity=0.6),
            "backward_sparsity must be in",
        ),
        (lambda: so.GSE(total_steps=9, subset=0), "subset must be positive, got 0"),
        (lambda: so.SRigL(total_steps=9, gamma_sal=2), r"gamma_sal must be in \[0, 1\], got 2"),
        (
            lambda: so.ACDC(total_steps=9, phase=0),
            r"phase is a share of total_steps and must be in \(0, 1\], got 0",
        ),
        (lambda: so.GMP(total_steps=9, scope="all"), "scope must be 'layer' or 'global', got 'all'"),  # pyright: ignore
        (lambda: so.ACDC(total_steps=9, distribution="eer"), "distribution must be .* got 'eer'"),  # pyright: ignore
        (lambda: so.TopKAST(total_steps=9, penalty_norm=3), "penalty_norm must be 1 or 2, got 3"),  # pyright: ignore
        (lambda: so.SET(total_steps=9, drop_decay="cos"), "drop_decay must be .* got 'cos'"),  # pyright: ignore
        (lambda: so.MEST(total_steps=9, lam=-1), "lam must not be negative, got -1"),
        (lambda: so.SNFS(total_steps=9, momentum=1), r"momentum must be in \[0, 1\), got 1"),
        (lambda: so.DSR(total_steps=9, threshold=0), "threshold must be positive, got 0"),
        (lambda: so.DeepR(total_steps=9, temperature=-1), "temperature must not be negative, got -1"),
    ],
)
def test_bad_settings_are_refused(make: Callable[[], so.Method], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_costs_as_the_papers_count() -> None:
    sparse = 0.1
    assert so.Static().cost_at(1, sparse) == pytest.approx(sparse)
    assert so.RigL(total_steps=100, every=10).cost_at(10, sparse) == pytest.approx((2 * sparse + 1) / 3)
    assert so.SNFS(total_steps=100).cost_at(7, sparse) == pytest.approx((2 * sparse + 1) / 3)
    assert so.MEST(total_steps=100, every=10).cost_at(10, sparse) == pytest.approx(sparse)
    assert so.GMP(total_steps=100, every=10, sparsity=0.9).cost_at(1, sparse) == pytest.approx(1.0)
    assert so.GMP(total_steps=100, every=10, sparsity=0.9, until=0.5).cost_at(50, sparse) == pytest.approx(
        sparse
    )
    assert so.GSE(total_steps=100, every=10, subset=3.0).cost_at(10, sparse) == pytest.approx((0.2 + 0.4) / 3)
    assert so.AnnealedTopK(total_steps=100).cost_at(100, sparse) == pytest.approx((2 * sparse + 1) / 3)
    assert so.TopKAST(total_steps=9, sparsity=0.9, backward_sparsity=0.8).cost_at(1, sparse) == pytest.approx(
        0.4 / 3
    )
