"""A step at which the method is due moves connections, and nothing else."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]


def single_layer(
    weight: list[float], mask: list[int], method: so.Method, **options: Any
) -> tuple[nn.Linear, so.SparseOpt]:
    """One neuron with the given incoming weights, trained by Adam in float64."""
    model = nn.Linear(len(weight), 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weight]))
    topology = so.sparsify(model, masks={"weight": torch.tensor([mask]).bool()})
    return model, so.SparseOpt(torch.optim.Adam(model.parameters(), lr=0.01), topology, method, **options)


def step_with(model: nn.Linear, optimizer: so.SparseOpt, gradient: list[float]) -> None:
    model.weight.grad = torch.tensor([gradient], dtype=model.weight.dtype)
    optimizer.step()


# Step 2 of 4: fraction 0.5 / 2 (1 + cos(pi 2 / 4)) = 0.25 of 4 active weights = 1 weight moves.
RIGL = so.RigL(total_steps=4, every=2, drop_fraction=0.5, until=1.0)


def test_rigl_by_hand() -> None:
    model, optimizer = single_layer([4, -3, 0.5, 2, 9, 9], [1, 1, 1, 1, 0, 0], RIGL)
    step_with(model, optimizer, [1, 1, 1, 1, 0, 0])
    weights = model.weight.detach().clone()
    moments = {key: value.clone() for key, value in optimizer.state[model.weight].items()}
    step_with(model, optimizer, [0, 0, 0.1, 0, 0.2, -0.3])  # drops index 2, grows index 5
    assert optimizer.topology.masks["weight"].tolist() == [[True, True, False, True, False, True]]
    kept, moved = [0, 1, 3], [2, 4, 5]
    for now, then in [(model.weight.detach(), weights)] + [
        (optimizer.state[model.weight][key], moments[key]) for key in ("exp_avg", "exp_avg_sq")
    ]:
        assert torch.equal(now[0, kept], then[0, kept])  # no parameter moves
        assert not now[0, moved].any()  # dropped: gone; grown: from 0, without memory
    assert optimizer.state[model.weight]["step"] == 1
    step_with(model, optimizer, [1, 1, 1, 1, 1, 1])
    assert model.weight[0, 5] != 0  # the grown weight learns from the next step on
    assert model.weight[0, 2] == 0


def test_a_dropped_weight_that_returns_keeps_value_and_state() -> None:
    model, optimizer = single_layer([4, -3, 0.5, 2, 9, 9], [1, 1, 1, 1, 0, 0], RIGL)
    step_with(model, optimizer, [1, 1, 1, 1, 0, 0])
    weights, moment = model.weight.detach().clone(), optimizer.state[model.weight]["exp_avg"].clone()
    # index 2 has the smallest weight and the largest gradient
    step_with(model, optimizer, [0, 0, 5, 0, -0.2, 0.3])
    assert optimizer.topology.masks["weight"].tolist() == [[True, True, True, True, False, False]]
    assert torch.equal(model.weight.detach(), weights)
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], moment)
    assert moment[0, 2] != 0


def test_a_weight_that_comes_back_later_starts_at_zero() -> None:
    method = so.RigL(total_steps=100, every=1, drop_fraction=1.0, until=1.0)  # 1 of 2
    model, optimizer = single_layer([4, 0.5, 9], [1, 1, 0], method)
    step_with(model, optimizer, [0, 0, 1])  # 1 -> 2
    step_with(model, optimizer, [0, 1, 0])  # 2 (still 0) -> 1
    assert optimizer.topology.masks["weight"].tolist() == [[True, True, False]]
    assert model.weight.tolist() == [[4, 0, 0]]  # not the 0.5 it had


def test_a_grown_weight_starts_at_zero_also_where_a_dense_checkpoint_was_loaded() -> None:
    model, optimizer = single_layer(
        [4, 0.5, 9], [1, 1, 0], so.RigL(total_steps=9, every=1, drop_fraction=1.0)
    )
    model.load_state_dict({"weight": torch.tensor([[4.0, 0.5, 9.0]])})  # the inactive weight is 9 now
    step_with(model, optimizer, [0, 0, 1])
    assert optimizer.topology.masks["weight"].tolist() == [[True, False, True]]
    assert model.weight.tolist() == [[4, 0, 0]]


@pytest.mark.parametrize("method", [so.SET(total_steps=90, every=5), so.RigL(total_steps=90, every=5)])
def test_the_update_step_moves_no_parameter(
    method: so.Method, build: Callable[..., Network], train: Callable[..., None]
) -> None:
    model, topology = build()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    optimizer = so.SparseOpt(base, topology, method)
    train(model, optimizer, 4)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    old = {name: mask.clone() for name, mask in topology.masks.items()}
    train(model, optimizer, 1, first=5)
    names = {id(parameter): name for name, parameter in topology.parameters.items()}
    for parameter, then in zip(model.parameters(), before, strict=True):
        name = names.get(id(parameter))
        if name is None:
            assert torch.equal(parameter, then)
            continue
        stays = old[name] & topology.masks[name]
        assert torch.equal(parameter[stays], then[stays])
        assert not parameter[~stays].any()
        moved = int((old[name] & ~topology.masks[name]).sum())
        fraction = method.drop_fraction_at(5)
        assert moved <= int(fraction * int(old[name].sum()))
    assert topology.version == 1


def test_growth_by_the_original_and_by_the_corrected_gradient() -> None:
    # Neuron 0 has 1 input of 4, neuron 1 has 3: factors sqrt(1/2) and sqrt(3/2). One weight moves.
    chosen = {}
    for grow_from in ("original", "corrected"):
        model = nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[9.0, 0, 0, 0], [9, 9, 0.1, 0]]))
        topology = so.sparsify(model, masks="nonzero")
        # floor(0.3 * 4) = 1
        method = so.RigL(total_steps=100, every=1, drop_fraction=0.3, grow_from=grow_from)
        optimizer = so.SparseOpt(
            torch.optim.SGD(model.parameters(), lr=0.1), topology, method, correction="layer"
        )
        gradient = torch.tensor([[0.0, 0, 1.2, 0], [0, 0, 0, 1.0]])  # corrected: 0.849 and 1.225
        model.weight.grad = gradient.clone()
        optimizer.step()
        chosen[grow_from] = topology.masks["weight"].tolist()
        assert torch.equal(model.weight.grad, gradient)
    assert chosen["original"] == [[True, False, True, False], [True, True, False, False]]
    assert chosen["corrected"] == [[True, False, False, False], [True, True, False, True]]


def test_layers_without_a_gradient_keep_their_masks(
    build: Callable[..., Network], train: Callable[..., None]
) -> None:
    model, topology = build()
    frozen = topology.parameters["0.weight"].requires_grad_(False)
    before, mask = frozen.clone(), topology.masks["0.weight"].clone()
    base = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    train(model, so.SparseOpt(base, topology, so.SET(total_steps=90, every=2)), 10)
    assert torch.equal(frozen, before)
    assert torch.equal(topology.masks["0.weight"], mask)
    assert topology.version > 0


def test_a_dense_layer_is_left_alone(build: Callable[..., Network], train: Callable[..., None]) -> None:
    model, topology = build(None, distribution={"0.weight": 0.5, "3.weight": 0.0, "6.weight": 0.5})
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, so.SparseOpt(base, topology, so.SET(total_steps=90, every=2)), 10)
    assert topology.masks["3.weight"].all()
    assert torch.count_nonzero(topology.parameters["3.weight"]) == 160


def test_the_update_waits_while_a_gradient_is_not_finite(caplog: pytest.LogCaptureFixture) -> None:
    method = so.RigL(total_steps=90, every=4, drop_fraction=0.5)
    model, optimizer = single_layer([4, -3, 0.5, 2, 9, 9], [1, 1, 1, 1, 0, 0], method)
    topology, bad = optimizer.topology, float("inf")
    with caplog.at_level(logging.WARNING, logger="sparseopt"):
        for _ in range(3):
            step_with(model, optimizer, [1, 1, 1, 1, 1, 1])
        for value in (bad, float("nan")):  # step 4 is due; step 5 would make up for it
            step_with(model, optimizer, [1, 1, 1, 1, value, 1])
            assert topology.version == 0
            assert topology.dense_grads.wanted
        assert model.weight.isfinite().all()  # only inactive weights had the bad gradient: the others went on
        assert not model.weight[0, 4:].any()
        step_with(model, optimizer, [0, 0, 0, 0, 1, 2])
        assert topology.masks["weight"].tolist() == [[True, True, False, True, False, True]]
        assert not topology.dense_grads.wanted
        step_with(model, optimizer, [1, 1, 1, 1, 1, 1])
        step_with(model, optimizer, [1, 1, 1, 1, bad, 1])
        assert topology.version == 1
    told = [record.levelname for record in caplog.records if "not finite" in record.message]
    assert told == ["WARNING"]  # once, not again at step 8
    assert "step 4" in caplog.text


def test_a_waiting_update_ends_with_the_schedule() -> None:
    method = so.RigL(total_steps=4, every=2, drop_fraction=0.5)  # the only update is due at 2, the end is 3
    model, optimizer = single_layer([4, -3, 0.5, 2, 9, 9], [1, 1, 1, 1, 0, 0], method)
    for _ in range(3):
        step_with(model, optimizer, [1, 1, 1, 1, 1, float("inf")])
    step_with(model, optimizer, [1, 1, 1, 1, 1, 1])
    assert optimizer.topology.version == 0
    assert not optimizer.topology.dense_grads.wanted


def test_set_does_not_look_at_gradients() -> None:
    model, optimizer = single_layer(
        [4, -3, 0.5, 2, 9, 9], [1, 1, 1, 1, 0, 0], so.SET(total_steps=90, every=1, drop_fraction=0.5)
    )
    step_with(model, optimizer, [1, 1, 1, 1, float("nan"), float("inf")])
    assert optimizer.topology.version == 1


def masks_after_one_random_update(seed: int, step: int) -> list[Tensor]:
    """Two equal layers, started from equal masks and weights, whose connections move at this step for the first time."""
    model = nn.Sequential(nn.Linear(30, 30, bias=False), nn.Linear(30, 30, bias=False))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    masks = {name: torch.eye(30).bool() for name, _ in model.named_parameters()}
    topology = so.sparsify(model, masks=masks, seed=seed)
    method = so.SET(total_steps=10_000, every=step, drop_fraction=1.0)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.0), topology, method)
    for _ in range(step):
        model(torch.ones(1, 30)).sum().backward()
        optimizer.step()
    return list(topology.masks.values())


def test_every_update_layer_and_seed_has_a_draw_of_its_own() -> None:
    first, second = masks_after_one_random_update(seed=0, step=3)
    again = masks_after_one_random_update(seed=0, step=3)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    assert not torch.equal(first, second)
    assert not torch.equal(first, masks_after_one_random_update(seed=1, step=3)[0])
    assert not torch.equal(first, masks_after_one_random_update(seed=0, step=4)[0])


def test_the_dense_gradient_is_asked_for_exactly_where_it_is_read() -> None:
    rigl = so.RigL(total_steps=9, every=3, until=1.0)
    model, optimizer = single_layer([1, 1, 1, 1], [1, 1, 0, 0], rigl)
    asked = [optimizer.topology.dense_grads.wanted]
    for _ in range(9):
        step_with(model, optimizer, [1, 1, 1, 1])
        asked.append(optimizer.topology.dense_grads.wanted)
    assert [step for step, needed in enumerate(asked, start=1) if needed] == [3, 6]
    for method in (so.Static(), so.SET(total_steps=9, every=1)):
        assert not single_layer([1, 1, 1], [1, 1, 0], method)[1].topology.dense_grads.wanted
    _, clipped = single_layer([1, 1, 1], [1, 1, 0], so.Static(), max_grad_norm=1.0, clip="paper")
    assert clipped.topology.dense_grads.wanted


def test_a_method_of_ones_own_needs_no_decoration(
    build: Callable[..., Network], train: Callable[..., None]
) -> None:
    class FirstPlaces(so.SET):
        """Grows at the lowest indices."""

        def grow_score(
            self, weight: Tensor, grad: Tensor | None, generator: torch.Generator | None
        ) -> Tensor:
            return -torch.arange(float(weight.numel())).view_as(weight)

    model, topology = build()
    optimizer = so.SparseOpt(
        torch.optim.SGD(model.parameters(), lr=0.1),
        topology,
        FirstPlaces(total_steps=40, every=1, drop_fraction=1.0),
    )
    train(model, optimizer, 1)  # floor(0.998 * active) weights move to the front
    for mask in topology.masks.values():
        active = int(mask.sum())
        moved = int(optimizer.method.drop_fraction_at(1) * active)
        assert mask.view(-1)[:moved].all()
    assert optimizer.state_dict()["sparseopt"]["configuration"]["method"] == "FirstPlaces"


@pytest.mark.parametrize("way", ["replace", "load_state_dict"])
def test_masks_changed_by_the_user_are_in_force_at_the_next_step(
    way: str,
    build: Callable[..., Network],
    train: Callable[..., None],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
) -> None:
    model, topology = build()
    optimizer = so.SparseOpt(torch.optim.Adam(model.parameters()), topology, so.Static())
    train(model, optimizer, 2)
    other = build(0.7, masks={name: mask.flip(0, 1) for name, mask in topology.masks.items()})[1]
    topology.replace(other.masks) if way == "replace" else topology.load_state_dict(other.state_dict())
    train(model, optimizer, 1, first=3)
    assert_exactly_sparse(optimizer)
    for name, factors in so.skew_factors(other).items():
        assert torch.equal(topology.masks[name], other.masks[name])
        assert torch.equal(optimizer.factors[name], factors.float())


def test_two_models_are_trained_independently(
    build: Callable[..., Network],
    train: Callable[..., None],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
) -> None:
    def fresh() -> tuple[nn.Sequential, so.SparseOpt]:
        model, topology = build()
        return model, so.SparseOpt(
            torch.optim.SGD(model.parameters(), lr=0.1), topology, so.SET(total_steps=40, every=2)
        )

    alone, (one, two) = fresh(), (fresh(), fresh())
    train(*alone, 10)
    for step in range(1, 11):
        train(*one, 1, first=step)
        train(*two, 1, first=step + 100)
    assert all(torch.equal(a, b) for a, b in zip(alone[0].parameters(), one[0].parameters(), strict=True))
    for model in (one, two):
        assert_exactly_sparse(model[1])
