import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import sparseopt as so
from sparseopt.lab import data
from sparseopt.lab.config.recipes import RECIPES, Config
from sparseopt.lab.data import Dataset, load
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.row import Row
from sparseopt.lab.training.experiment import build
from sparseopt.lab.training.metrics import GRAD_NORM, topology_metrics, train_metrics
from sparseopt.lab.training.train import train
from sparseopt.lab.training.trainer import Diverged, Observer, Trainer

Small = Callable[..., Config]
STEPS_PER_EPOCH = 10


def state(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_dense_training_is_what_one_would_write_by_hand(small: Small) -> None:
    config = small(method="dense", epochs=2, max_grad_norm=None)
    trained = train(config).experiment
    assert trained is not None
    by_hand = build(config)
    sgd = torch.optim.SGD(by_hand.model.parameters(), lr=0.0, momentum=0.9, weight_decay=5e-4)
    total, warmup, step = 2 * STEPS_PER_EPOCH, STEPS_PER_EPOCH, 0
    for epoch in range(2):
        for x, y in by_hand.data.train_batches(epoch):
            cosine = (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2
            rate = 0.1 * step / warmup if step < warmup else 1e-6 + (0.1 - 1e-6) * cosine
            sgd.param_groups[0]["lr"] = rate
            sgd.zero_grad()
            cross_entropy(by_hand.model(x), y).backward()
            sgd.step()
            step += 1
    expected = by_hand.model.state_dict()
    for name, value in trained.model.state_dict().items():
        assert torch.allclose(value, expected[name], rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("method", ["static", "set", "rigl"])
def test_sparsity_is_exact_and_held_throughout(small: Small, method: str) -> None:
    summary = train(small(method=method))
    experiment = summary.experiment
    assert experiment is not None
    assert experiment.topology is not None
    weights = 784 * 16 + 16 * 12 + 12 * 10
    assert experiment.topology.active() == summary.result["active_weights"] == round(0.2 * weights)
    for name, mask in experiment.topology.masks.items():
        assert (experiment.topology.parameters[name][~mask] == 0).all()
    rates = [row["itop_rate"] for row in summary.rows]
    assert rates == sorted(rates)
    assert (rates[-1] > 0.201) == (method != "static")


def test_dense_and_sparse_runs_of_a_seed_start_from_the_same_weights(small: Small) -> None:
    dense, sparse = build(small(method="dense")), build(small(method="set"))
    assert sparse.topology is not None
    for name, mask in sparse.topology.masks.items():
        assert torch.equal(dense.model.get_parameter(name)[mask], sparse.model.get_parameter(name)[mask])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ham": True, "correction": "shuffled"},
        {"method": "set", "correction": "global", "fan_in": "bimodal:5"},
        {"method": "dense"},
        {"correction": "none", "clip": "paper", "grow_from": "corrected"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())) or "default",
)
def test_a_state_taken_at_any_step_leads_to_the_same_end(small: Small, changes: dict[str, Any]) -> None:
    whole = Trainer(build(small(**changes)))
    states: list[dict[str, Any]] = []

    class Saving(Observer):
        def stepped(self, trainer: Trainer) -> None:
            if trainer.step % 7 == 0:
                states.append(_copied(trainer.state_dict()))

    whole.run([Saving()])
    assert len(states) == 4
    for saved in states:
        resumed = Trainer(build(small(**changes)))
        resumed.load_state_dict(saved)
        resumed.run()
        for name, value in whole.experiment.model.state_dict().items():
            assert torch.equal(value, resumed.experiment.model.state_dict()[name]), name
        assert [_timeless(row) for row in resumed.rows] == [_timeless(row) for row in whole.rows]


def test_a_convolutional_network_with_augmentation_resumes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (96, 3, 32, 32), dtype=torch.uint8, generator=draw)
    labels = torch.randint(100, (96,), generator=draw)
    colours = Dataset("c", images, labels, images, labels, 100, (0.5,) * 3, (0.25,) * 3, augmented=True)
    monkeypatch.setitem(data._LOADERS, "cifar100", lambda _: colours)
    changes = {"epochs": 2, "warmup_epochs": 1.0, "batch_size": 32, "width": 0.25, "every": 2, "ham": True}
    config = replace(RECIPES["cifar100-resnet20"], **changes)
    states: list[dict[str, Any]] = []

    class Saving(Observer):
        def stepped(self, trainer: Trainer) -> None:
            states.append(_copied(trainer.state_dict()))

    whole = Trainer(build(config))
    whole.run([Saving()])
    resumed = Trainer(build(config))
    resumed.load_state_dict(states[3])
    resumed.run()
    for name, value in whole.experiment.model.state_dict().items():
        assert torch.equal(value, resumed.experiment.model.state_dict()[name]), name


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _timeless(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "seconds"}


def test_a_row_holds_what_the_epoch_showed(small: Small) -> None:
    shown: list[Tensor] = []

    class Watching(Observer):
        def epoch_ended(self, trainer: Trainer, row: Row, losses: Tensor) -> None:
            shown.append(losses)

    rows = train(small(), observers=[Watching()]).rows
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row["step"] for row in rows] == [10, 20, 30]
    for row, epoch in zip(rows, shown, strict=True):
        assert row["train_loss"] == pytest.approx(epoch.double().mean().item())
        assert row["mean_train_loss"] == pytest.approx(
            torch.cat(shown[: row["epoch"]]).double().mean().item()
        )
        assert 0 <= row["clipped_steps"] <= 1
        assert row["sparsity"] == pytest.approx(0.8, abs=1e-4)


def test_the_test_set_is_evaluated_in_evaluation_mode(small: Small) -> None:
    summary = train(small(epochs=1, warmup_epochs=0.0))
    assert summary.experiment is not None
    model, digits = summary.experiment.model.eval(), load("digits")
    scores = model((digits.test_images.float() / 255 - 0.1307) / 0.3081).double()
    accuracy = (scores.argmax(1) == digits.test_labels).double().mean().item()
    assert summary.rows[0]["test_accuracy"] == accuracy
    assert summary.rows[0]["test_loss"] == pytest.approx(
        cross_entropy(scores, digits.test_labels).item(), rel=1e-5
    )


def test_norms_count_only_steps_that_moved_weights() -> None:
    trace = torch.tensor([[1.0, 2.0, 3.0], [4.0, 8.0, 0.0], [0.5, math.nan, 1.5]])
    row = train_metrics(trace, 8, max_grad_norm=1.0)
    assert row == {"train_loss": 2.0, "train_accuracy": 0.5, "grad_norm": 1.0, "clipped_steps": 0.5}
    nothing = train_metrics(torch.tensor([[1.0], [1.0], [math.nan]]), 8, None)
    assert nothing["grad_norm"] is None
    assert nothing["clipped_steps"] is None


def test_update_steps_have_no_norm(small: Small) -> None:
    trainer = Trainer(build(small(epochs=1)))
    moved: list[int] = []

    class Watching(Observer):
        def stepped(self, trainer: Trainer) -> None:
            if trainer.trace[GRAD_NORM, trainer.batch - 1].isnan():
                moved.append(trainer.step)

    trainer.run([Watching()])
    assert moved == [4]  # every 4 steps, for the first 75% of 10


def test_spreads_are_taken_within_layers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 2))
    masks = {
        "0.weight": torch.tensor([[True, True, True, False], [True, False, False, False]]),
        "1.weight": torch.ones(2, 2, dtype=torch.bool),
    }
    topology = so.sparsify(model, masks=masks)
    row = topology_metrics(topology, so.skew_factors(topology, "layer"))
    factors = [math.sqrt(3 / 2), math.sqrt(1 / 2)]
    assert row["fan_in_spread"] == pytest.approx(
        (0.5 + 0) / 2
    )  # fan-in 3 and 1: std 1 of mean 2; 2 and 2: none
    assert row["factor_spread"] == pytest.approx((factors[0] - factors[1]) / 2 / 2)
    assert row["factor_mean"] == pytest.approx((sum(factors) + 2) / 4)
    assert row["dead_neurons"] == 0
    assert row["sparsity"] == pytest.approx(4 / 12)


def test_divergence_is_reported_at_its_first_step(small: Small) -> None:
    config = small(method="dense", lr=1e25, warmup_epochs=0.0, max_grad_norm=None)
    by_hand = Trainer(build(config))
    first = None
    for x, y in by_hand.experiment.data.train_batches(0):
        by_hand._take_step(x, y)
        if not by_hand.trace[0, by_hand.batch - 1].isfinite():
            first = by_hand.batch
            break
    with pytest.raises(Diverged, match=rf"at step {first}; lower --lr") as caught:
        train(config)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": "resnet20"}, "needs colour images"),
        ({"fan_in": "trimodal"}, "--fan-in must be random, constant or bimodal:R"),
        ({"batch_size": 5000}, "--batch-size must be between 1 and 4000"),
    ],
)
def test_what_cannot_be_built_is_one_line(small: Small, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        build(small(**changes))
