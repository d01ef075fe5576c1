"""SparseOpt is an ordinary torch optimizer in every way a user can tell."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import sparseopt as so

Network = tuple[nn.Sequential, so.Topology]
Build = Callable[..., Network]
Train = Callable[..., None]


@pytest.fixture
def network(build: Build) -> Network:
    return build()


def wrap(network: Network, method: so.Method | None = None, **options: Any) -> so.SparseOpt:
    model, topology = network
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    return so.SparseOpt(base, topology, method or so.RigL(total_steps=80, every=5), **options)


def parameters_of(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_equal(one: list[Tensor], other: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_groups_state_and_defaults_are_the_base_optimizers(network: Network, train: Train) -> None:
    optimizer = wrap(network)
    assert isinstance(optimizer, torch.optim.Optimizer)
    train(network[0], optimizer, 2)
    assert optimizer.param_groups is optimizer.base.param_groups
    assert optimizer.state is optimizer.base.state
    assert optimizer.defaults["momentum"] == 0.9
    assert "lr: 0.1" in repr(optimizer)
    assert optimizer.steps == 2


def test_each_group_moves_by_its_own_learning_rate(by_hand: Network) -> None:
    model, topology = by_hand
    groups = [
        {"params": [topology.parameters["0.weight"]], "lr": 0.5},
        {"params": [topology.parameters["1.weight"]]},
    ]
    base = torch.optim.SGD(groups, lr=2.0)
    optimizer = so.SparseOpt(base, topology, so.Static(), correction="none")
    before = parameters_of(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for parameter, then, mask, lr in zip(
        model.parameters(), before, topology.masks.values(), (0.5, 2.0), strict=True
    ):
        torch.testing.assert_close(then - parameter.detach(), lr * mask.double())


def test_a_group_added_later_is_trained(network: Network, train: Train) -> None:
    model, _ = network
    head = nn.Linear(4, 4)
    optimizer = wrap(network)
    optimizer.add_param_group({"params": head.parameters(), "lr": 0.01})
    before = parameters_of(head)
    train(nn.Sequential(model, head), optimizer, 3)
    assert all((a != b).any() for a, b in zip(parameters_of(head), before, strict=True))
    assert optimizer.param_groups[1]["momentum"] == 0.9
    assert len(optimizer.state_dict()["param_groups"]) == 2


def test_a_step_without_any_gradient_changes_nothing_but_the_count(network: Network) -> None:
    for options in ({}, {"max_grad_norm": 1.0}, {"max_grad_norm": 1.0, "clip": "paper"}):
        model, topology = network
        before, masks = parameters_of(model), {name: mask.clone() for name, mask in topology.masks.items()}
        optimizer = wrap(network, so.RigL(total_steps=80, every=2), **options)
        for _ in range(3):
            optimizer.step()
        assert optimizer.steps == 3
        assert_equal(parameters_of(model), before)
        assert_equal(list(topology.masks.values()), list(masks.values()))
        del optimizer


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 3),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (t + 1)),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=20),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=4),
    "warm-up": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.01, total_iters=4), lr_scheduler.CosineAnnealingLR(o, 16)], [4]
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch 2.6's SequentialLR, around any optimizer
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("every", [1, 5])
def test_schedulers_drive_the_learning_rate_without_a_warning(
    name: str, every: int, build: Build, train: Train
) -> None:
    rates = {}
    for wrapped in (True, False):
        network = build()
        optimizer: torch.optim.Optimizer = wrap(network, so.SET(total_steps=20, every=every))
        if not wrapped:
            optimizer = torch.optim.SGD(network[0].parameters(), lr=0.1, momentum=0.9)
        scheduler = SCHEDULERS[name](optimizer)
        rates[wrapped] = []
        for step in range(1, 19):
            train(network[0], optimizer, 1, first=step)
            scheduler.step()
            rates[wrapped].append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
    assert rates[True] == rates[False]
    assert len(set(rates[True])) > 3


def test_plateau_scheduler(network: Network, train: Train) -> None:
    optimizer = wrap(network)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for step in range(1, 4):
        train(network[0], optimizer, 1, first=step)
        scheduler.step(1.0)
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2


def test_the_scaler_unscales_before_and_skips_overflow(build: Build, loss_of: Callable[..., Tensor]) -> None:
    plain, scaled = build(), build()
    optimizers = wrap(plain, max_grad_norm=1.0), wrap(scaled, max_grad_norm=1.0)
    # a power of two scales exactly
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step in range(1, 13):
        optimizers[0].zero_grad()
        loss_of(plain[0], step).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        scaler.scale(loss_of(scaled[0], step)).backward()
        scaler.step(optimizers[1])
        scaler.update()
    assert_equal(parameters_of(plain[0]), parameters_of(scaled[0]))
    before = parameters_of(scaled[0])
    optimizers[1].zero_grad()
    scaler.scale(loss_of(scaled[0], 13) * float("inf")).backward()
    scaler.step(optimizers[1])
    scaler.update()
    assert optimizers[1].steps == 12
    assert scaler.get_scale() == 512.0
    assert_equal(parameters_of(scaled[0]), before)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none: bool, network: Network, train: Train) -> None:
    optimizer = wrap(network)
    train(network[0], optimizer, 1)
    optimizer.zero_grad(set_to_none=set_to_none)
    for parameter in network[0].parameters():
        assert (
            (parameter.grad is None)
            if set_to_none
            else (parameter.grad is not None and not parameter.grad.any())
        )


def test_a_closure_returns_its_loss_at_every_step(
    build: Build, train: Train, loss_of: Callable[..., Tensor]
) -> None:
    (model, topology), twin = build(), build()
    optimizer, plain = wrap((model, topology)), wrap(twin)
    for step in range(1, 13):
        expected = loss_of(model, step).item()
        calls = []

        def closure(step: int = step, calls: list[int] = calls) -> float:
            calls.append(step)
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            return loss.item()

        assert optimizer.step(closure) == expected
        assert calls == [step]
        train(twin[0], plain, 1, first=step)
    assert topology.version == 2
    assert_equal(parameters_of(model), parameters_of(twin[0]))


def test_step_hooks_run_once_around_every_step(network: Network, train: Train) -> None:
    optimizer = wrap(network, so.RigL(total_steps=80, every=2))
    seen: list[tuple[str, int]] = []
    before = optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append(("before", o.steps)))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append(("after", o.steps)))
    train(network[0], optimizer, 2)
    before.remove()
    train(network[0], optimizer, 1, first=3)
    assert seen == [("before", 0), ("after", 1), ("before", 1), ("after", 2), ("after", 3)]


def test_hooks_of_the_base_optimizer_keep_running(network: Network, train: Train) -> None:
    optimizer = wrap(network)
    calls: list[int] = []
    optimizer.base.register_step_post_hook(lambda o, args, kwargs: calls.append(1))
    train(network[0], optimizer, 5)
    assert len(calls) == 4  # the fifth step moves connections only


def test_state_dict_hooks(network: Network, train: Train) -> None:
    optimizer = wrap(network)
    train(network[0], optimizer, 1)
    order: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda o: order.append("pre"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "note": "mine"})
    optimizer.register_load_state_dict_pre_hook(
        lambda o, state: {**state, "param_groups": halved(state["param_groups"])}
    )
    optimizer.register_load_state_dict_post_hook(lambda o: order.append(f"post {o.param_groups[0]['lr']}"))

    def halved(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**group, "lr": group["lr"] / 2} for group in groups]

    state = optimizer.state_dict()
    assert state["note"] == "mine"
    optimizer.load_state_dict(state)
    assert order == ["pre", "post 0.05"]


def roundtrip(pair: tuple[nn.Module, so.SparseOpt]) -> tuple[nn.Module, so.SparseOpt]:
    return pickle.loads(pickle.dumps(pair))


def saved(pair: tuple[nn.Module, so.SparseOpt]) -> tuple[nn.Module, so.SparseOpt]:
    file = io.BytesIO()
    torch.save(pair, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copy_pair", [copy.deepcopy, roundtrip, saved], ids=["deepcopy", "pickle", "save"])
@pytest.mark.parametrize(
    "method", [so.Static(), so.SET(total_steps=80, every=4), so.RigL(total_steps=80, every=4)]
)
@pytest.mark.parametrize("ham", [False, True])
def test_a_copy_of_model_and_optimizer_goes_on_as_the_original(
    copy_pair: Callable[..., tuple[nn.Module, so.SparseOpt]],
    method: so.Method,
    ham: bool,
    network: Network,
    train: Train,
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
) -> None:
    model, topology = network
    base: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = so.SparseOpt(so.HAM(base) if ham else base, topology, method, max_grad_norm=1.0)
    train(model, optimizer, 6)
    frozen = parameters_of(model)
    twin, its_optimizer = copy_pair((model, optimizer))
    train(twin, its_optimizer, 10, first=7)
    assert_equal(parameters_of(model), frozen)  # the original has not been touched
    assert optimizer.steps == 6
    train(model, optimizer, 10, first=7)
    assert_equal(parameters_of(twin), parameters_of(model))
    assert_equal(list(its_optimizer.topology.masks.values()), list(topology.masks.values()))
    assert its_optimizer.topology.itop_rate() == topology.itop_rate()
    assert_exactly_sparse(its_optimizer)


def test_a_copied_scheduler_drives_the_copied_optimizer(network: Network, train: Train) -> None:
    model, _ = network
    optimizer = wrap(network)
    scheduler = lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    for step in range(1, 4):
        train(model, optimizer, 1, first=step)
        scheduler.step()
    twin, its_optimizer, its_scheduler = copy.deepcopy((model, optimizer, scheduler))
    train(twin, its_optimizer, 1, first=4)
    its_scheduler.step()
    assert its_optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5


def test_tied_weights_move_as_one(assert_exactly_sparse: Callable[[so.SparseOpt], None]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    model[2].weight = model[0].weight
    topology = so.sparsify(model, 0.5)
    base = torch.optim.Adam(model.parameters())
    optimizer = so.SparseOpt(base, topology, so.RigL(total_steps=40, every=2))
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
    assert sorted(topology.masks) == ["0.weight", "3.weight"]
    assert model[2].weight is model[0].weight
    assert_exactly_sparse(optimizer)


@pytest.mark.parametrize("clip", ["active", "paper"])
def test_convolutions_in_channels_last(
    clip: Any, assert_exactly_sparse: Callable[[so.SparseOpt], None]
) -> None:
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(4, 6, 3),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.ConvTranspose2d(6, 4, 3, groups=2),
            nn.Flatten(),
        ).double()
        model.to(memory_format=layout)  # type: ignore[call-overload]
        topology = so.sparsify(model, 0.6)
        base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = so.RigL(total_steps=40, every=3, grow_from="corrected")
        optimizer = so.SparseOpt(base, topology, method, correction="global", max_grad_norm=1.0, clip=clip)
        for step in range(8):
            draw = so.topology.generator(0, step)
            inputs = torch.randn(2, 4, 8, 8, generator=draw).double().to(memory_format=layout)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        assert_exactly_sparse(optimizer)
        results.append((topology, parameters_of(model)))
    assert_equal(list(results[0][0].masks.values()), list(results[1][0].masks.values()))
    for one, other in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
