"""`sparseopt sweep`, as the person at the keyboard meets it."""

import gc
import json
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from sparseopt.lab.commands.sweep import SOME_FAILED, main
from sparseopt.lab.config.recipes import RECIPES, Config
from sparseopt.lab.runs.catalogue import find_runs
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.sweep import run_configs
from sparseopt.lab.sweep.crew import place_of
from sparseopt.lab.sweep.database import Database, beside
from sparseopt.lab.sweep.definition import Definition
from sparseopt.lab.sweep.job import Job
from sparseopt.lab.sweep.messages import Sender
from sparseopt.lab.sweep.plan import Runs
from sparseopt.lab.sweep.trials import Trials
from sparseopt.lab.sweep.worker import Worker
from sparseopt.lab.training.place import Place
from sparseopt.lab.training.train import Summary, train

pytestmark = pytest.mark.slow

GRID = ["--grid", "seed=0,1"]


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "nothing to sweep; give --grid sparsity=0.9,0.95 or --search lr=log:0.01:0.5 --trials 30"),
        (["--grid", "sparsty=0.9"], "there is no setting 'sparsty' (did you mean sparsity?)"),
        (["--grid", "zzz=0.9"], "the settings are data, model, epochs"),
        (["--grid", "seed"], "write a setting and its values, such as sparsity=0.9,0.95"),
        (["--grid", "seed="], "--grid seed= has an empty value"),
        (["--grid", "seed=0,,1"], "--grid seed=0,,1 has an empty value"),
        (["--grid", "seed=0,1,0"], "--grid seed has 0 twice"),
        (["--grid", "seed=0", "--grid", "seed=1"], "--grid seed is given twice"),
        (["--grid", "seed=one"], "--grid seed: 'one' is not a whole number"),
        (["--grid", "method=set,magic"], "'magic' is not one of dense, static, set, rigl"),
        (["--grid", "max_grad_norm=none,x"], "'x' is not a number or none"),
        (["--grid", "hidden=64x"], "'64x' is not widths such as 64x32"),
        (["--grid", "exclude=none,none"], "--grid exclude has none twice"),
        (
            ["--grid", "sparsity=0.9,1.5"],
            "sparsity=1.5: --sparsity must be at least 0 and less than 1, got 1.5",
        ),
        (["--grid", "clip=active,paper"], "clip=paper: --clip paper says how to clip"),
        ([*GRID, "--seed", "3"], "--seed and --grid seed both decide seed; give one"),
        ([*GRID, "--trials", "3"], "--trials is for --search"),
        ([*GRID, "--search", "lr=log:0.1:1", "--trials", "3"], "--grid and --search do not go together"),
        (["--search", "lr=log:0.1:1"], "--search needs --trials"),
        (["--search", "lr=0.1", "--trials", "3"], "write log:A:B, uniform:A:B or A|B|C"),
        (["--search", "lr=log:0:1", "--trials", "3"], "a logarithmic range must begin above 0, got 0"),
        (["--search", "lr=log:1:0.1", "--trials", "3"], "must go from a smaller number to a larger one"),
        (
            ["--search", "sparsity=uniform:0.5:2", "--trials", "3"],
            "--sparsity must be at least 0 and less than 1",
        ),
        (["--search", "method=log:1:2", "--trials", "3"], "method is no number; write its values as A|B|C"),
        (["--search", "lr=log:0.1:1", "--trials", "0"], "--trials must be at least 1, got 0"),
        ([*GRID, "--workers", "0"], "--workers must be at least 1, got 0"),
        ([*GRID, "--heartbeat", "30"], "--dead-after must be at least 3 times --heartbeat"),
        ([*GRID, "--patience", "nan"], "--patience must be at least 0 seconds"),
        ([*GRID, "--storage", "mysql://me@host/db"], "studies live in PostgreSQL"),
        ([*GRID, "--storage", "nonsense"], "--storage is no database URL; write postgresql://USER@HOST/NAME"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    *,
    argv: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("sparseopt sweep: ")
    assert error.count("\n") == 1
    assert complaint in error
    assert not list(tmp_path.iterdir())


def test_a_database_that_is_not_there_is_told_without_its_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "postgresql://me:secret@127.0.0.1:1/db"
    assert main([*GRID, "--storage", url, "--out", str(tmp_path / "sweep")]) == 2
    said = capsys.readouterr()
    assert " postgresql+psycopg://me:***@127.0.0.1:1/db " in said.err
    assert "secret" not in said.out + said.err


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.db").write_text("a shopping list")
    assert main([*GRID, "--out", str(tmp_path)]) == 2
    assert "file is not a database" in capsys.readouterr().err
    assert (tmp_path / "study.db").read_text() == "a shopping list"


def test_a_damaged_database_is_told_with_what_to_do(
    sweep: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = sweep("seed=0")
    there = Definition.of("grid", RECIPES["digits-mlp"], ("seed",), {})
    Trials.open(Database(swept.storage), swept.name, Runs.of([RECIPES["digits-mlp"]], there, ("seed",)))
    file = tmp_path / "study0.db"
    whole = file.read_bytes()
    damaged = whole[: 8 * 4096] + bytes(
        len(whole) - 8 * 4096
    )  # the list of tables is readable, the tables are not
    file.write_bytes(damaged)
    assert main(swept.argv()) == 2
    error = capsys.readouterr().err
    assert "cannot be used" in error
    assert "same command" in error


def test_another_sweep_of_the_same_name_is_refused(
    sweep: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    swept = sweep("seed=0")
    there = Definition.of("grid", RECIPES["digits-mlp"], ("seed",), {})
    Trials.open(Database(swept.storage), swept.name, Runs.of([RECIPES["digits-mlp"]], there, ("seed",)))
    assert main(swept.argv()) == 2
    error = capsys.readouterr().err
    assert "(epochs is 20 there, 3 here; " in error
    assert "--out or --name" in error


def test_a_run_that_diverges_fails_and_the_others_go_on(
    sweep: Callable[..., Any], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    swept = sweep("lr=1e25,0.1")
    assert main(swept.argv("--method", "dense", "--epochs", "1")) == SOME_FAILED
    states = {trial.params["lr"]: trial for trial in swept.trials()}
    assert states[0.1].state == TrialState.COMPLETE
    assert states[1e25].state == TrialState.FAIL
    assert "at step" in states[1e25].user_attrs["reason"]
    assert "failed: " in caplog.text
    shown = capsys.readouterr().out
    assert "1/2 done, 0 running, 1 failed, 0 waiting" in shown
    assert f"{states[0.1].values[0]:.2%}" in shown


def test_a_damaged_run_waits_until_it_is_put_right(
    sweep: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    swept = sweep("seed=0,1")
    config = _config(epochs=3, batch_size=400, hidden=(16,), every=4, sparsity=0.8, method="set")
    damaged = RunDir(swept.folder / "runs" / config.run_name)
    damaged.path.mkdir(parents=True)
    damaged.config_file.write_text('{"config": {"data"')
    assert main(swept.argv()) == 2
    error = capsys.readouterr().err
    told = f"{damaged.path.name}: {damaged.config_file} is not a JSON file"
    assert f": {told}" in error
    assert [trial.state.name for trial in swept.trials()] == ["WAITING", "COMPLETE"]
    damaged.config_file.unlink()
    assert main(swept.argv()) == 0
    swept.assert_each_ended_once(2)


def test_a_search_shows_the_best_first(sweep: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    swept = sweep()
    argv = swept.argv("--epochs", "1", "--search", "lr=log:0.01:0.5", "--search", "sparsity=uniform:0.5:0.9")
    argv = [word for word in argv if word not in ("--sparsity", "0.8")]
    assert main([*argv, "--trials", "3"]) == 0
    accuracies = sorted((trial.values[0] for trial in swept.trials()), reverse=True)
    assert len(accuracies) == 3
    shown = capsys.readouterr().out
    places = [shown.index(f"{accuracy:.2%}") for accuracy in accuracies]
    assert places == sorted(places)
    assert "optuna-dashboard sqlite:///" in shown


def test_configurations_from_a_program_are_trained_and_returned_in_order(tmp_path: Path) -> None:
    small: dict[str, Any] = {"epochs": 1, "batch_size": 400, "hidden": (8,), "every": 4}
    configs = [_config(seed=seed, **small) for seed in (1, 0)]
    place = Place(threads=1)
    runs = run_configs(configs, tmp_path, name="mine", place=place)
    assert [run.config for run in runs] == configs
    assert [run.state for run in runs] == ["finished", "finished"]
    more = [*configs, _config(seed=2, **small)]
    before = json.loads((runs[0].path / "summary.json").read_text())
    assert [run.config.seed for run in run_configs(more, tmp_path, name="mine", place=place)] == [1, 0, 2]
    assert json.loads((runs[0].path / "summary.json").read_text()) == before
    assert len(find_runs(tmp_path)) == 3


def _config(**changes: Any) -> Config:
    return replace(RECIPES["digits-mlp"], **changes)


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    shares = [place_of(Place(), number, 3) for number in range(3)]
    assert [(share.threads, share.device) for share in shares] == [
        (2, "cuda:0"),
        (2, "cuda:1"),
        (2, "cuda:0"),
    ]
    assert place_of(Place(threads=5, device="cpu"), 1, 3) == Place(threads=5, device="cpu")
    assert place_of(Place(), 0, 1).threads is None


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for option in (
        "--grid",
        "--search",
        "--trials",
        "--workers",
        "--storage",
        "--out",
        "--sparsity",
        "--data-dir",
    ):
        assert option in text


def test_a_run_that_somebody_else_trains_does_not_hold_up_the_others(tmp_path: Path) -> None:
    configs = [replace(RECIPES["digits-mlp"], hidden=(16,), epochs=1, seed=seed) for seed in (0, 1)]
    job = Job(
        *(
            Database(beside(tmp_path)),
            "study",
            Runs.of(configs, Definition("runs")),
            tmp_path,
            Place(threads=1),
        ),
        heartbeat=0.1,
    )
    Trials.open(job.database, job.name, job.plan)
    occupied, free = (RunDir(job.run_dir(config.run_name)) for config in configs)
    here, there = Pipe()
    held = ExitStack()
    held.enter_context(occupied.locked())
    seen: list[bool] = []

    def let_go() -> None:
        for _ in range(600):
            if free.summary_file.exists():
                break
            time.sleep(0.1)
        seen.append(free.summary_file.exists())
        held.close()

    other = threading.Thread(target=let_go)
    other.start()
    Worker(job, "a worker", Sender(there)).run()  # pyright: ignore[reportArgumentType] - not on Windows
    other.join()
    here.close()
    assert seen == [True]
    assert occupied.summary_file.exists()


def test_a_worker_lets_go_of_a_run_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors and modules of a run refer to one another: without help they would stay for many runs."""
    configs = [replace(RECIPES["digits-mlp"], epochs=1, hidden=(16,), seed=seed) for seed in range(3)]
    job = Job(
        *(Database(beside(tmp_path)), "study", Runs.of(configs, Definition("runs")), tmp_path),
        Place(threads=1, accelerate="on"),
        heartbeat=0.1,
    )
    Trials.open(job.database, job.name, job.plan)
    there: list[int] = []
    made: list[weakref.ref[object]] = []

    def watched(*args: Any, **options: Any) -> Summary:
        there.append(sum(each() is not None for each in made))
        summary = train(*args, **options)
        assert summary.experiment is not None
        made.append(weakref.ref(summary.experiment.model))
        return summary

    monkeypatch.setattr("sparseopt.lab.sweep.worker.train", watched)
    here, end = Pipe()
    gc.disable()
    try:
        Worker(job, "a worker", Sender(end)).run()  # pyright: ignore[reportArgumentType] - not on Windows
    finally:
        gc.enable()
    here.close()
    assert there == [0, 0, 0]
