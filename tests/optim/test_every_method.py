"""What holds for every method of the field, at every step of a short run."""

from collections.abc import Callable

import pytest
import torch
from every_method import METHODS, STEPS
from torch import Tensor, nn

import sparseopt as so
from sparseopt.methods import WeightMethod

Train = Callable[..., None]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    return nn.Sequential(*layers)


def set_up(method: str) -> tuple[nn.Module, so.SparseOpt]:
    model, start = network(), METHODS[method].starts_at()
    topology = so.sparsify(model, 0.7 if start is None else start, distribution="uniform", seed=2)
    return model, so.SparseOpt(torch.optim.AdamW(model.parameters(), lr=0.02), topology, METHODS[method])


@pytest.mark.parametrize("method", METHODS)
def test_zeros_are_exact_and_counts_are_true_at_every_step(
    method: str, train: Train, shaped_state: Callable[..., dict[str, Tensor]]
) -> None:
    model, optimizer = set_up(method)
    topology = optimizer.topology
    ever = {name: mask.clone() for name, mask in topology.masks.items()}
    total = topology.active()
    for step in range(1, STEPS + 1):
        before = {name: mask.clone() for name, mask in topology.masks.items()}
        train(model, optimizer, 1, first=step)
        for name, mask in topology.masks.items():
            parameter = topology.parameters[name]
            assert parameter.isfinite().all()
            assert not parameter.detach()[~mask].any(), "inactive weights are exactly zero"
            assert int(mask.sum()) == topology.active(name) > 0
            grown = mask & ~before[name]
            for tensor in shaped_state(optimizer, parameter).values():
                assert not tensor[~optimizer.learning(name)].any(), "no state where nothing learns"
                assert optimizer.learning(name)[mask].all()
                if not isinstance(optimizer.method, WeightMethod) or not optimizer.method.trains_inactive:
                    assert not tensor[grown].any(), "grown weights have no memory"
                    assert not parameter.detach()[grown].any()
            ever[name] |= mask
        if not METHODS[method].changes_counts():
            assert topology.active() == total
    assert topology.itop_rate() == pytest.approx(
        sum(int(mask.sum()) for mask in ever.values()) / topology.size()
    )


@pytest.mark.parametrize("method", METHODS)
def test_it_learns_and_ends_at_the_sparsity_asked_for(method: str, train: Train) -> None:
    model, optimizer = set_up(method)
    x = torch.randn(64, 12, generator=torch.Generator().manual_seed(1))
    y = (x[:, :4].argmax(1)).long()
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    size, active = optimizer.topology.size(), optimizer.topology.active()
    asked = getattr(METHODS[method], "sparsity", None)
    if asked is not None:
        assert abs(active - (1 - asked) * size) <= len(optimizer.topology.layers)
    elif method == "srste" or method == "nm":
        assert active == size // 2
    elif method != "nm-set" and method != "srigl":  # SRigL leaves what does not divide
        assert abs(active - 0.3 * size) <= len(optimizer.topology.layers)


@pytest.mark.parametrize("method", METHODS)
def test_a_copy_goes_on_alone(method: str, train: Train) -> None:
    import copy

    model, optimizer = set_up(method)
    train(model, optimizer, 5)
    twin_model, twin = copy.deepcopy((model, optimizer))
    train(model, optimizer, 5, first=6)
    train(twin_model, twin, 5, first=6)
    for one, other in zip(model.parameters(), twin_model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("method", ["gmp", "granet", "acdc", "topkast", "annealed", "srste"])
def test_a_topology_of_another_sparsity_is_refused(method: str) -> None:
    model = network()
    topology = so.sparsify(model, 0.9)
    name = type(METHODS[method]).__name__
    with pytest.raises(ValueError, match=rf"{name} .*sparsity .*sparsify\(model"):
        so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, METHODS[method])


@pytest.mark.parametrize("method", METHODS)
def test_costs_are_shares_of_a_dense_step(method: str) -> None:
    costs = [METHODS[method].cost_at(step, 0.2) for step in range(1, STEPS + 1)]
    assert all(0.2 - 1e-12 <= cost <= 1 for cost in costs)


def test_every_method_is_among_them() -> None:
    public = {each for name in so.methods.__all__ if isinstance(each := getattr(so.methods, name), type)}
    bases = {so.Method, WeightMethod}
    concrete = {each for each in public if issubclass(each, so.Method)} - bases
    assert concrete == {type(method) for method in METHODS.values()}


@pytest.mark.parametrize("method", METHODS)
def test_packed_storage_holds_it_or_says_why_not(method: str, train: Train) -> None:
    model, start = network(), METHODS[method].starts_at()
    topology = so.sparsify(model, 0.7 if start is None else start, storage="packed", seed=2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if method not in ("static", "set", "rigl", "gse", "mest"):
        name = type(METHODS[method]).__name__
        with pytest.raises(ValueError, match=rf"{name} .*packed.*storage='dense'"):
            so.SparseOpt(sgd, topology, METHODS[method])
        return
    before = {name: topology.active(name) for name in topology.layers}
    optimizer = so.SparseOpt(sgd, topology, METHODS[method])
    train(model, optimizer, STEPS)
    assert {name: topology.active(name) for name in topology.layers} == before
