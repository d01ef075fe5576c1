"""`sparseopt train --accelerate`: the same training, within rounding, and resumable as ever."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

import sparseopt as so
from sparseopt.__main__ import main
from sparseopt.kernels.acceleration import SparseForward
from sparseopt.lab.config.recipes import RECIPES, Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.training.experiment import build
from sparseopt.lab.training.train import train
from sparseopt.lab.training.trainer import Observer, Trainer

pytestmark = pytest.mark.slow


class StopAt(Observer):
    """Ends a run after a step, as whatever goes wrong would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, trainer: Trainer) -> None:
        if trainer.step == self.step:
            raise UserError(f"stopped after step {self.step}")


def small(**changes: object) -> Config:
    return replace(RECIPES["digits-mlp"], epochs=2, hidden=(64,), every=10, **changes)  # pyright: ignore


def test_accelerated_training_learns_the_same() -> None:
    dense, sparse = (train(small(), accelerate=choice) for choice in ("off", "on"))
    assert sparse.experiment is not None
    assert isinstance(sparse.experiment.model.forward, SparseForward)
    for ours, theirs in zip(sparse.rows, dense.rows, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=0.05)
        assert ours["sparsity"] == theirs["sparsity"]


def test_two_accelerated_runs_are_the_same_run() -> None:
    first, second = (train(small(), accelerate="on") for _ in range(2))
    assert [row["train_loss"] for row in first.rows] == [row["train_loss"] for row in second.rows]


def test_auto_says_what_it_chose(caplog: pytest.LogCaptureFixture) -> None:
    build(small(), accelerate="auto")
    assert "ms dense" in caplog.text


def test_a_run_that_goes_on_keeps_what_auto_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another measurement would choose otherwise."""
    monkeypatch.setattr(so.kernels, "faster_layers", lambda *_: ("1", "4"))
    with pytest.raises(UserError, match="stopped after step 5"):
        train(small(), tmp_path, accelerate="auto", observers=[StopAt(5)])
    monkeypatch.setattr(so.kernels, "faster_layers", lambda *_: pytest.fail("measured again"))
    summary = train(small(), tmp_path, accelerate="auto")
    assert summary.experiment is not None
    assert so.kernels.accelerated_layers(summary.experiment.model) == ("1", "4")


def test_auto_goes_by_the_zeros_where_these_become_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Measured at the first step, which is dense, the kernels would lose for good."""
    monkeypatch.setattr(so.kernels, "faster_layers", lambda *_: pytest.fail("measured"))
    config = small(method="gmp", sparsity=0.9)
    assert so.kernels.accelerated_layers(build(config, accelerate="auto").model) == ()
    assert "0.0% zeros in the layers that run together, which pays from 50% on" in caplog.text
    with pytest.raises(UserError, match="stopped after step 20"):
        train(config, tmp_path, accelerate="auto", observers=[StopAt(20)])
    summary = train(config, tmp_path, accelerate="auto")
    assert summary.experiment is not None
    assert so.kernels.accelerated_layers(summary.experiment.model) == ("1", "4")


def test_a_dense_run_has_nothing_to_accelerate() -> None:
    assert "forward" not in build(small(method="dense"), accelerate="on").model.__dict__


def test_the_option(tmp_path: Path) -> None:
    options = ["--epochs", "1", "--hidden", "32", "--accelerate", "on", "--out", str(tmp_path / "run")]
    assert main(["train", "digits-mlp", *options]) == 0


@pytest.mark.skipif("SPARSEOPT_DATA" not in os.environ, reason="needs CIFAR-100")
def test_a_few_steps_on_cifar() -> None:
    config = replace(RECIPES["cifar100-resnet20"], sparsity=0.95)
    experiment = build(config, accelerate="on")
    assert isinstance(experiment.model.forward, SparseForward)
    images, _ = next(iter(experiment.data.train_batches(0, 0)))
    assert experiment.forward(images).shape == (config.batch_size, 100)
