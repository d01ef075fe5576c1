"""A run that is stopped in whatever way ends with the same bits as one that never was."""

import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sparseopt.kernels import accelerated_layers
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import INTERRUPTED, UserError
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.runs.checkpoint import decode
from sparseopt.lab.runs.provenance import in_words
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.training import experiment
from sparseopt.lab.training.acceleration import Accelerate, Storage
from sparseopt.lab.training.experiment import build_model
from sparseopt.lab.training.restore import restore, with_dense_storage
from sparseopt.lab.training.train import train
from sparseopt.lab.training.trainer import Diverged, Observer, Trainer

Small = Callable[..., Config]
Outcome = Callable[[Path], tuple[bytes, list[dict[str, Any]]]]

KILLS = {"off": 20, "on": 8}


@pytest.fixture(scope="module")
def reference(small: Small, outcome: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the small run leads to if nothing happens to it."""
    out = tmp_path_factory.mktemp("reference") / "run"
    train(small(), out)
    return outcome(out)


@pytest.fixture(scope="module")
def workers() -> Any:
    """Processes that start at once, because all they import has been imported before they are forked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sparseopt.lab.training.train", "torch.utils.tensorboard.writer"])
    return context


class Signalling(Observer):
    """Sets an event after a number of steps of its own."""

    def __init__(self, steps: int, reached: Any) -> None:
        self.steps, self.reached = steps, reached

    def stepped(self, trainer: Trainer) -> None:
        self.steps -= 1
        if self.steps == 0:
            self.reached.set()


def run_in_process(config: Config, out: Path, steps: int, reached: Any, accelerate: Accelerate) -> None:
    torch.set_num_threads(1)  # as in this process
    train(config, out, checkpoint_seconds=0, observers=[Signalling(steps, reached)], accelerate=accelerate)
    reached.set()


def run_with_little_space(config: Config, out: Path, limit: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        train(config, out, checkpoint_seconds=0)
    except UserError as error:
        os._exit(error.exit_code if "cannot write" in str(error) else 1)


@pytest.mark.slow
@pytest.mark.parametrize("accelerate", KILLS)
def test_killed_at_random_moments_it_ends_with_the_same_bits(
    *, accelerate: Accelerate, small: Small, outcome: Outcome, workers: Any, tmp_path: Path
) -> None:
    whole = train(small(), tmp_path / "whole", accelerate=accelerate)
    assert whole.experiment is not None
    assert bool(accelerated_layers(whole.experiment.model)) == (accelerate == "on")
    moments, kills, finished = random.Random(0), 0, 0
    while kills < KILLS[accelerate] or not finished:
        out, reached = tmp_path / str(finished), workers.Event()
        steps = moments.randint(0, 15) if kills < KILLS[accelerate] else 1000  # 0: before the first step
        worker = workers.Process(target=run_in_process, args=(small(), out, steps, reached, accelerate))
        worker.start()
        if steps:
            reached.wait()
        if kills < KILLS[accelerate]:
            worker.join(moments.uniform(0, 0.03))  # about the time of a step and its checkpoint
        else:
            worker.join()
        if worker.is_alive():
            worker.kill()
            worker.join()
            kills += 1
        else:
            assert worker.exitcode == 0
            assert outcome(out) == outcome(tmp_path / "whole")
            finished += 1


@pytest.mark.parametrize("room", ["none", "little"])
def test_a_disk_that_fills_up_stops_it_in_one_line_and_costs_nothing(
    *, room: str, small: Small, outcome: Outcome, reference: Any, workers: Any, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    train(small(), whole)
    size = max(path.stat().st_size for path in (whole / "checkpoints").iterdir())
    out = tmp_path / "run"
    worker = workers.Process(
        target=run_with_little_space, args=(small(), out, size - 1 if room == "little" else 0)
    )
    worker.start()
    worker.join()
    assert worker.exitcode == 2
    assert not list(out.rglob("*.tmp"))
    train(small(), out)
    assert outcome(out) == reference


class At(Observer):
    """Does something after a given step."""

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        self.step, self.action = step, action

    def stepped(self, trainer: Trainer) -> None:
        if trainer.step == self.step:
            self.action()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("step", [1, 13, 20])
def test_ctrl_c_saves_and_says_how_to_go_on(
    *, step: int, small: Small, outcome: Outcome, reference: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError, match=rf"step {step} of 30 .*saved") as caught:
        train(small(), out, observers=[At(step, interrupt)])
    assert caught.value.exit_code == INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    train(small(), out)
    assert outcome(out) == reference


def test_an_exception_anywhere_leaves_a_run_that_goes_on(
    *, small: Small, outcome: Outcome, reference: Any, tmp_path: Path
) -> None:
    def fail() -> None:
        raise RuntimeError("somebody's observer")

    out = tmp_path / "run"
    for step in (5, 17):
        with pytest.raises(RuntimeError):
            train(small(), out, observers=[At(step, fail)])
    train(small(), out)
    assert outcome(out) == reference


def test_a_damaged_checkpoint_costs_only_the_steps_since_the_one_before(
    *, small: Small, outcome: Outcome, reference: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError):
        train(small(), out, observers=[At(25, interrupt)])
    newest = RunDir(out).checkpoints.newest_first()[0]
    newest.write_bytes(newest.read_bytes()[:-1])
    steps: list[int] = []

    class Watching(Observer):
        def started(self, trainer: Trainer) -> None:
            steps.append(trainer.step)

    train(small(), out, observers=[Watching()])
    assert steps == [20]
    assert outcome(out) == reference


def test_the_same_command_gives_the_same_bits(
    *, small: Small, outcome: Outcome, reference: Any, tmp_path: Path
) -> None:
    train(small(), tmp_path / "again")
    assert outcome(tmp_path / "again") == reference
    train(small(seed=1), tmp_path / "other")
    assert outcome(tmp_path / "other") != reference


def test_a_finished_run_is_not_trained_again(small: Small, tmp_path: Path) -> None:
    first = train(small(epochs=1), tmp_path / "run")
    second = train(small(epochs=1), tmp_path / "run", observers=[At(1, interrupt)])
    assert second.experiment is None
    assert second.result == first.result
    assert second.rows == first.rows


@pytest.mark.parametrize("damaged", ["metrics.jsonl", "summary.json"])
def test_a_complete_run_that_was_damaged_is_told_and_comes_back(
    damaged: str, small: Small, tmp_path: Path
) -> None:
    train(small(), tmp_path)
    whole = {name: (tmp_path / name).read_bytes() for name in ("metrics.jsonl", "summary.json")}
    (tmp_path / damaged).write_text("{")
    with pytest.raises(UserError, match=rf"{damaged} .*remove .*same command"):
        train(small(), tmp_path)
    (tmp_path / "summary.json").unlink()
    train(small(), tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in whole} == whole


def test_a_folder_goes_on_with_its_own_run_only(small: Small, tmp_path: Path) -> None:
    train(small(epochs=1), tmp_path / "run")
    with pytest.raises(UserError, match=r"another run .*lr .*0\.1.*0\.2.*--out"):
        train(small(epochs=1, lr=0.2), tmp_path / "run")


def test_a_dense_run_is_the_same_at_any_sparsity(small: Small, tmp_path: Path) -> None:
    train(small(epochs=1, method="dense", sparsity=0.9), tmp_path / "run")
    again = train(small(epochs=1, method="dense", sparsity=0.5), tmp_path / "run")
    assert again.experiment is None
    with pytest.raises(UserError, match=r"another run .*method .*dense.*set"):
        train(small(epochs=1, method="set"), tmp_path / "run")


def test_a_second_process_is_refused(small: Small, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with run.locked():
        assert run.running()
        with pytest.raises(UserError, match=rf"process {os.getpid()}"):
            train(small(), run.path)
    assert not run.running()


def test_a_refused_run_leaves_no_folder(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "runs" / "refused")
    with pytest.raises(UserError, match="batch-size"):
        train(small(batch_size=100_000), run.path)
    assert not run.path.exists()
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="wandb"):
        train(small(), run.path, tracker=["wandb"])
    assert not run.path.exists()
    run.path.mkdir()
    with pytest.raises(UserError, match="batch-size"):
        train(small(batch_size=100_000), run.path)
    assert run.path.exists(), "a folder that was there is not ours to remove"


def test_a_lock_that_its_owner_removed_locks_nothing(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with run.locked():
        (run.path / "lock").unlink()
        with run.locked():
            assert run.running()


def test_signals_are_left_alone_outside_the_main_thread(small: Small, tmp_path: Path) -> None:
    worker = threading.Thread(target=train, args=(small(epochs=1), tmp_path / "run"))
    worker.start()
    worker.join()
    assert RunDir(tmp_path / "run").summary() is not None


def test_divergence_keeps_the_last_finite_checkpoint(small: Small, tmp_path: Path) -> None:
    config = small(method="dense", lr=1e25, warmup_epochs=0.2, max_grad_norm=None)
    run = RunDir(tmp_path / "run")
    with pytest.raises(Diverged) as caught:
        train(config, run.path, checkpoint_seconds=0)
    kept = decode(run.checkpoints.newest_first()[0].read_bytes(), torch.device("cpu"))
    assert all(bool(value.isfinite().all()) for value in kept["model"].values())
    assert kept["batch"] < caught.value.step
    assert json.loads(run.diverged_file.read_text())["step"] == caught.value.step
    assert run.summary() is None


def test_metrics_of_a_torn_line_are_left_out(small: Small, tmp_path: Path) -> None:
    train(small(epochs=2), tmp_path / "run")
    run = RunDir(tmp_path / "run")
    rows = run.metrics()
    with run.metrics_file.open("a") as file:
        file.write('{"epoch": 3, "tr')
    assert run.metrics() == rows
    assert len(rows) == 2


def test_going_on_under_other_conditions_is_told(
    small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError):
        train(small(), out, observers=[At(5, interrupt)])
    record = json.loads((out / "config.json").read_text())
    record["versions"]["torch"] = "1.0"
    record["accelerate"] = "on"
    (out / "config.json").write_text(json.dumps(record))
    train(small(), out)
    assert f"torch was 1.0, is {torch.__version__}" in caplog.text
    assert "accelerate" in caplog.text
    assert caplog.text.count("bits") == 2
    after = json.loads((out / "config.json").read_text())
    assert after.pop("continued") == [{"step": 5, "torch": torch.__version__, "accelerate": "off"}]
    assert after == record
    told = in_words(Run.read(out).environment)
    assert told["torch"] == f"1.0, then {torch.__version__}"
    assert told["accelerate"] == "on, then off"


def test_going_on_again_is_compared_with_what_was_last(
    small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError):
        train(small(), out, observers=[At(5, interrupt)])
    record = json.loads((out / "config.json").read_text())
    record["versions"]["torch"] = "1.0"
    (out / "config.json").write_text(json.dumps(record))
    with pytest.raises(UserError):
        train(small(), out, observers=[At(11, interrupt)])
    caplog.clear()
    train(small(), out)
    assert "bits" not in caplog.text
    assert len(json.loads((out / "config.json").read_text())["continued"]) == 1


class Drawing(torch.nn.Module):
    """A network with dropout."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(torch.nn.functional.dropout(x, 0.5, self.training))


def test_a_network_that_draws_ends_with_the_same_bits(
    *, small: Small, outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "build_model", lambda *args: Drawing(build_model(*args)))
    train(small(), tmp_path / "whole")
    torch.rand(3)  # somebody else has drawn meanwhile
    with pytest.raises(UserError):
        train(small(), tmp_path / "run", observers=[At(13, interrupt)])
    torch.rand(5)
    train(small(), tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_run_of_an_older_version_goes_on(
    small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError):
        train(small(), out, observers=[At(5, interrupt)])
    record = json.loads((out / "config.json").read_text())
    del record["config"]["ham_beta"], record["accelerate"]  # as if they had not existed
    (out / "config.json").write_text(json.dumps(record))
    assert train(small(), out).result["epochs"] == 3
    assert "accelerate" not in caplog.text


def test_the_record_tells_what_it_ran_on(small: Small, tmp_path: Path) -> None:
    train(small(epochs=1, seed=5), tmp_path / "run")
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["config"]["seed"] == 5
    assert record["versions"]["torch"] == torch.__version__
    assert record["device"] == "cpu"
    assert record["threads"] == torch.get_num_threads()
    assert record["accelerate"] == "off"


def test_the_model_file_is_an_ordinary_dense_network(small: Small, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    summary = train(small(epochs=1), tmp_path / "run")
    assert summary.experiment is not None
    loaded = load_file(tmp_path / "run" / "model.safetensors")
    assert loaded.keys() == summary.experiment.model.state_dict().keys()
    for name, value in summary.experiment.model.state_dict().items():
        assert torch.equal(loaded[name], value)


def test_curves_have_every_step_once_also_after_a_resume(small: Small, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(UserError):
        train(small(), tmp_path / "run", observers=[At(15, interrupt)])
    train(small(), tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("step/train_loss")] == list(range(1, 31))
    assert [event.step for event in events.Scalars("epoch/test_accuracy")] == [10, 20, 30]


def test_a_run_can_be_brought_back_and_is_not_changed_by_it(small: Small, tmp_path: Path) -> None:
    summary = train(small(), tmp_path / "run")
    assert summary.experiment is not None
    assert summary.experiment.topology is not None
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    restored = restore(tmp_path / "run")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    assert restored.step == restored.total_steps == 30
    assert restored.experiment.topology is not None
    for name, value in summary.experiment.model.state_dict().items():
        assert torch.equal(restored.experiment.model.state_dict()[name], value)
    for name, mask in summary.experiment.topology.masks.items():
        assert torch.equal(restored.experiment.topology.masks[name], mask)


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_a_run_is_brought_back_in_its_storage(small: Small, tmp_path: Path, storage: Storage) -> None:
    summary = train(small(), tmp_path / "run", storage=storage)
    assert summary.experiment is not None
    restored = restore(tmp_path / "run")
    assert restored.experiment.topology is not None
    assert restored.experiment.topology.kind() == storage
    dense = with_dense_storage(restored)
    assert dense.experiment.topology is not None
    assert (dense.experiment.topology.kind(), dense.step) == ("dense", restored.step)
    x = torch.randn(4, *restored.experiment.data.shape)
    scores = [each.experiment.model.eval()(x) for each in (restored, dense)]
    torch.testing.assert_close(*scores)
    torch.testing.assert_close(scores[0], summary.experiment.model.eval()(x))
    for name, mask in restored.experiment.topology.masks.items():
        assert torch.equal(dense.experiment.topology.masks[name], mask)


def test_what_is_no_run_cannot_be_brought_back(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"folder of a run"):
        restore(tmp_path)
