"""Curves that go to MLflow and W&B: the settings, a row an epoch, and one identity for all parts of a resumed run."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.training.train import train
from sparseopt.lab.training.trainer import Observer, Trainer

Small = Callable[..., Config]


class Failing(Observer):
    """Fails in the second epoch."""

    def stepped(self, trainer: Trainer) -> None:
        if trainer.step == 15:
            raise RuntimeError


@pytest.mark.filterwarnings("ignore")  # of libraries that MLflow imports
def test_mlflow_has_one_run_with_all_epochs_of_a_resumed_one(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    config = small(epochs=2)
    with pytest.raises(RuntimeError):
        train(config, tmp_path / "run", observers=[Failing()], tracker=["mlflow"])
    summary = train(config, tmp_path / "run", tracker=["mlflow"])
    (run,) = mlflow.search_runs(experiment_names=["sparseopt"], output_format="list")
    assert run.data.params["method"] == config.method
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "test_accuracy")
    assert [(each.step, each.value) for each in history] == [
        (row["epoch"], row["test_accuracy"]) for row in summary.rows
    ]


@pytest.mark.filterwarnings("ignore")  # of libraries that MLflow imports
def test_a_tracker_that_cannot_begin_is_one_line(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setattr(mlflow, "start_run", lambda **_: (_ for _ in ()).throw(OSError("no server\nhere")))
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    with pytest.raises(UserError, match=r"--tracker mlflow cannot begin: no server$"):
        train(small(epochs=1), tmp_path / "run", tracker=["mlflow"])


def test_wandb_is_told_the_same(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B itself wants a server or a service process; what it is told is recorded by a stand-in."""
    calls: list[Any] = []

    class Run:
        id = "abc"

        def log(self, numbers: dict[str, float], step: int) -> None:
            calls.append((step, numbers["test_accuracy"]))

        def finish(self) -> None:
            calls.append("finished")

    def init(**options: Any) -> Run:
        calls.append((options["id"], options["resume"], options["config"]["method"]))
        return Run()

    monkeypatch.setitem(__import__("sys").modules, "wandb", types.SimpleNamespace(init=init))
    config = small(epochs=2)
    with pytest.raises(RuntimeError):
        train(config, tmp_path / "run", observers=[Failing()], tracker=["wandb"])
    rows = train(config, tmp_path / "run", tracker=["wandb"]).rows
    accuracies = [row["test_accuracy"] for row in rows]
    assert calls == [
        (None, "allow", config.method),
        (1, accuracies[0]),
        "finished",
        ("abc", "allow", config.method),
        (2, accuracies[1]),
        "finished",
    ]


def test_a_tracker_that_is_not_installed_is_named(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'sparseopt\[wandb\]'"):
        train(small(epochs=1), tmp_path / "run", tracker=["wandb"])


def test_no_tracker_at_all(small: Small, tmp_path: Path) -> None:
    train(small(epochs=1), tmp_path / "run", tracker=[])
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_tracker_that_fails_later_does_not_cost_the_run(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Run:
        id = "abc"

        def log(self, numbers: dict[str, float], step: int) -> None:
            raise RuntimeError("503")

        def finish(self) -> None:
            raise RuntimeError("503")

    monkeypatch.setitem(__import__("sys").modules, "wandb", types.SimpleNamespace(init=lambda **_: Run()))
    summary = train(small(epochs=2), tmp_path / "run", tracker=["wandb"])
    assert len(summary.rows) == 2
    assert [record.levelname for record in caplog.records if "wandb" in record.getMessage()] == [
        "WARNING"
    ] * 3
