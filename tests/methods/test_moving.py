"""SRigL, MEST, SNFS, DSR and GSE against numbers worked out by hand, in float64, from their papers."""

import pytest
import torch
from by_hand import chosen, step_with, tensor, trained, views
from torch import nn

import sparseopt as so
from sparseopt.methods import Count, LayerView, Memory
from sparseopt.topology import generator

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


def test_in_srigl_as_many_salient_weights_as_asked_for_are_enough() -> None:
    weight = torch.zeros(2, 100, dtype=torch.float64)
    weight[0, :50], weight[1, :50] = 1.0, torch.arange(50) + 2.0
    grad = torch.zeros(2, 100, dtype=torch.float64)
    grad[0, 50:65], grad[1, 50:70] = 2.0, 3.0  # of 35 that grow, 15 are the first neuron's: 0.3 of its 50
    view = LayerView(weight != 0, weight, grad)
    assert so.SRigL(total_steps=9, gamma_sal=0.3)._left(view, 65, 100).tolist() == [True, True]
    assert so.SRigL(total_steps=9, gamma_sal=0.62)._left(view, 65, 100).tolist() == [False, True]


def test_srigl_leaves_as_many_neurons_as_hold_its_weights() -> None:
    # 8 neurons, 24 of 64 weights. Of 14 kept ones 3, 3, 2, 2, 1, 1, 1, 1 belong to the neurons; what grows, 10, to the first
    # two: 8 salient weights each. No other has the 3 it needs, but two neurons hold 16 weights, not 24.
    weight, grad = (torch.zeros(8, 8, dtype=torch.float64) for _ in range(2))
    weight[:, :3], grad[:2, 3:] = 0.1, 2.0
    for neuron, large in enumerate((3, 3, 2, 2, 1, 1, 1, 1)):
        weight[neuron, :large] = 5.0
    method = so.SRigL(total_steps=100, drop_fraction=0.43, drop_decay="constant", gamma_sal=1.0)  # 10.32 go
    layers = views({"a": weight}, {"a": grad})
    assert method.counts(layers, 10, Memory()) == {"a": Count(14, 24)}
    assert [sum(row) for row in chosen(method, layers, 10)["a"]] == [8, 8, 8, 0, 0, 0, 0, 0]
    # condensed-sparsity lowers its threshold to what the neuron after these three has, 2: four neurons, of 6 weights each


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
