"""The command from end to end, on a target of the embedded digits."""

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sparseopt.lab.commands.reproduce import main
from sparseopt.lab.reproduce.drawings import draw
from sparseopt.lab.reproduce.estimate import Pace, measure
from sparseopt.lab.reproduce.grid import Arm, Grid
from sparseopt.lab.reproduce.outcomes import Outcomes, collect
from sparseopt.lab.reproduce.plan import plan, runs_table, summary
from sparseopt.lab.reproduce.targets import TARGETS, Target
from sparseopt.lab.show.figures import save
from sparseopt.lab.training.place import Place
from sparseopt.lab.training.train import train

pytestmark = pytest.mark.slow

AtScale = Callable[..., Grid]
OutcomesOf = Callable[..., Outcomes]


@pytest.fixture(scope="module", autouse=True)
def known(digits: Target) -> Iterator[None]:
    """The command knows the target on digits as it knows the paper's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TARGETS, digits.name, digits)
        yield


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after the whole command: two rows, two seeds, real training."""
    out = tmp_path_factory.mktemp("reproduced") / "new"
    assert main(["table-digits", "--seeds", "2", "--out", str(out), "--threads", "1"]) == 0
    return out


def test_it_leaves_the_results_in_every_form(reproduced: Path) -> None:
    folder = reproduced / "table-digits"
    names = {path.name for path in folder.iterdir()}
    assert {"results.md", "results.csv", "results.json", "index.html", "accuracy.tex"} <= names
    assert {"curves-set-4.png", "curves-set-4.pdf"} <= names
    assert all("Scale: " in path.read_text() for path in folder.glob("*.tex"))
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert all({row["fraction_of_data"], row["width"]} == {"1.0"} for row in rows)
    assert [(row["training"], row["seeds"]) for row in rows] == [("SparseOpt", "2"), ("baseline", "2")]
    results = json.loads((folder / "results.json").read_text())
    accuracy = [
        json.loads((reproduced / "runs" / run / "summary.json").read_text()) for run in results["runs"]
    ]
    mean = 100 * sum(run["test_accuracy"] for run in accuracy[2:]) / 2
    assert float(rows[1]["accuracy_mean"]) == pytest.approx(mean)
    assert f"{mean:.2f}" in (folder / "results.md").read_text()


def test_every_form_says_the_scale_and_the_verdict(reproduced: Path) -> None:
    folder = reproduced / "table-digits"
    for name in ("results.md", "results.json", "index.html"):
        text = (folder / name).read_text()
        assert "Scale: the paper&#39;s 4 epochs" in text or "Scale: the paper's 4 epochs" in text
        assert "SparseOpt against the baseline" in text


def test_settings_and_versions_are_told(reproduced: Path) -> None:
    settings = json.loads((reproduced / "table-digits" / "results.json").read_text())["settings"]
    assert (settings["batch size"], settings["hidden"], settings["threads"]) == ("400", "16, 12", "1")
    assert settings["torch"] == torch.__version__
    assert "| hidden | 16, 12 |" in (reproduced / "table-digits" / "results.md").read_text()


def test_finished_runs_are_not_trained_again(reproduced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in reproduced.glob("runs/*/summary.json")}
    assert len(before) == 4
    assert main(["table-digits", "--seeds", "2", "--out", str(reproduced), "--threads", "1"]) == 0
    assert {path: path.stat().st_mtime_ns for path in reproduced.glob("runs/*/summary.json")} == before
    assert "4 finished runs" in capsys.readouterr().out


def test_runs_under_other_names_count_and_missing_ones_are_marked(
    reproduced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, run in enumerate(sorted(reproduced.glob("runs/*-seed0-*"))):
        shutil.copytree(run, tmp_path / "runs" / f"mine-{number}")
    argv = ["table-digits", "--seeds", "2", "--out", str(tmp_path), "--tabulate-only"]
    assert main([*argv, "--results", str(tmp_path / "here")]) == 0
    assert (tmp_path / "here" / "results.md").exists()
    out = capsys.readouterr().out
    assert "(1 of 2 seeds)" in out
    assert "2 of 4 runs" in out
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["mine-0", "mine-1"]


def test_runs_of_other_machines_count_by_what_their_results_hold(
    reproduced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the folders on the other machine nothing is left."""
    results = shutil.copytree(reproduced / "table-digits", tmp_path / "sent")
    whole = json.loads((results / "results.json").read_text())["cells"]
    argv = ["table-digits", "--seeds", "2", "--out", str(tmp_path / "new"), "--known", str(results)]
    assert main([*argv, "--threads", "1"]) == 0
    assert not (tmp_path / "new" / "runs").exists()
    again = tmp_path / "new" / "table-digits"
    assert json.loads((again / "results.json").read_text())["cells"] == whole
    assert (again / "runs.jsonl").read_text() == (results / "runs.jsonl").read_text()
    capsys.readouterr()
    assert main([*argv, "--seeds", "3", "--dry-run"]) == 0
    assert "6 runs, 4 done, 2 to train" in " ".join(capsys.readouterr().out.split())
    for folder, message in (("nowhere", "there is no folder"), ("empty", "holds no run")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert main(["table-digits", "--known", str(tmp_path / folder)]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_results_of_fewer_runs_keep_those_that_were_archived(reproduced: Path, tmp_path: Path) -> None:
    results = shutil.copytree(reproduced / "table-digits", tmp_path / "sent")
    argv = ["table-digits", "--seeds", "1", "--out", str(tmp_path / "new"), "--known", str(results)]
    assert main([*argv, "--results", str(results), "--tabulate-only"]) == 0
    assert "2 finished runs" in (results / "results.md").read_text()
    assert len((results / "runs.jsonl").read_text().splitlines()) == 4


def test_a_record_from_before_a_setting_existed_counts(
    reproduced: Path, tmp_path: Path, digits: Target, at_scale: AtScale
) -> None:
    run = next(reproduced.glob("runs/*-none-seed0-*"))
    shutil.copytree(run, tmp_path / "old")
    record = json.loads((tmp_path / "old" / "config.json").read_text())
    del record["config"]["data_fraction"]
    (tmp_path / "old" / "config.json").write_text(json.dumps(record))
    assert len(collect(at_scale(digits), tmp_path).finished) == 1


def test_tabulating_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table-digits", "--out", str(tmp_path), "--tabulate-only"]) == 2
    assert "no run of table-digits" in capsys.readouterr().err


def test_a_dry_run_trains_nothing_and_tells_the_time(
    reproduced: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(reproduced.rglob("*"))
    argv = ["table-digits", "--seeds", "3", "--epochs", "4", "8", "--out", str(reproduced), "--dry-run"]
    assert main([*argv, "--workers", "2", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "2 of 3 done" in out
    assert "0 of 3 done" in out
    assert "12 runs, 4 done, 8 to train:" in out
    assert "with 2 workers" in out
    assert sorted(reproduced.rglob("*")) == before


def test_the_time_is_steps_and_evaluations_times_epochs(
    digits: Target, at_scale: AtScale, outcomes_of: OutcomesOf
) -> None:
    grid = at_scale(digits, epochs=(10, 100), seeds=2)
    outcomes = outcomes_of(grid, {Arm("layer"): [90.0]})
    planned = plan(outcomes, Place(), lambda config, place: Pace(0.5, 10.0, 20))
    # An epoch takes 20 s; 110 epochs are missing of one seed of SparseOpt, 220 of two of the baseline.
    assert planned.total == pytest.approx(330 * 20)
    assert [row[-1] for row in runs_table(planned).rows] == ["36m40s", "1h13m"]
    assert summary(planned, Place(), 2).startswith("8 runs, 2 done, 6 to train: 1h50m")
    assert "55m00s with 2 workers" in summary(planned, Place(), 2)


def test_the_pace_is_that_of_real_steps(digits: Target) -> None:
    pace = measure(replace(digits.recipe, method="rigl"), Place())
    assert pace.steps_per_epoch == 10
    assert pace.step > 0
    assert pace.evaluation > 0
    dense = measure(replace(digits.recipe, method="dense"), Place())
    assert dense.epoch == pytest.approx(10 * dense.step + dense.evaluation)


def test_the_pace_of_a_run_of_a_single_step_is_measured(digits: Target) -> None:
    pace = measure(
        replace(digits.recipe, method="rigl", epochs=1, data_fraction=0.1, batch_size=400), Place()
    )
    assert pace.steps_per_epoch == 1
    assert pace.step > 0


def test_a_run_half_done_counts_with_what_is_left(tmp_path: Path, digits: Target, at_scale: AtScale) -> None:
    grid = at_scale(digits, seeds=1)
    row = grid.rows[0]
    config = grid.config(row, 4, 0)
    folder = tmp_path / "half"
    train(config, folder)
    assert list(collect(grid, tmp_path).cells[row, 4].runs) == [0]
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:3]))
    for remove in ((), ("summary.json",)):  # complete, but damaged since; and not complete
        for name in remove:
            (folder / name).unlink()
        cell = collect(grid, tmp_path).cells[row, 4]
        assert not cell.runs
        assert cell.epochs_left == 1


def test_every_kind_of_figure_is_drawn(digits: Target, at_scale: AtScale, tmp_path: Path) -> None:
    target = replace(
        digits, methods=("rigl",), grow_from=("original", "corrected"), drawn=("curves", "budgets", "itop")
    )
    grid = at_scale(target, epochs=(1, 2), seeds=1)
    for config in grid.configs():
        train(config, tmp_path / "runs" / config.run_name)
    drawings = draw(collect(grid, tmp_path / "runs"))
    assert set(drawings) == {"curves-rigl-1", "curves-rigl-2", "epochs-rigl", "itop-rigl-1", "itop-rigl-2"}
    labels = {text.get_text() for text in drawings["epochs-rigl"].figure.legends[0].get_texts()}
    assert labels == {"SparseOpt", "SparseOpt, grown by corrected gradients", "baseline"}
    for name, drawing in drawings.items():
        assert all(path.stat().st_size > 5000 for path in save(drawing.figure, tmp_path / name))


def test_the_papers_figures_are_drawn_beside_ours(at_scale: AtScale, outcomes_of: OutcomesOf) -> None:
    grid = at_scale(TARGETS["figure-epochs-cifar100-set"], epochs=(100, 200), sparsities=(0.97,))
    drawing = draw(outcomes_of(grid, {Arm("layer"): [54.0], Arm("none"): [53.0]}))["epochs-set"]
    assert "the paper's figures" in drawing.caption
    drawn = [np.asarray(line.get_ydata()).tolist() for line in drawing.figure.axes[0].get_lines()]
    assert [54.76, 56.50] in drawn


def test_alone_it_lists_the_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name}" in out for name in TARGETS)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["table-cifar-set"], "unknown target 'table-cifar-set' (did you mean table-cifar100-set?)"),
        (["table-digits", "--sparsities", "1.2"], "--sparsities must be"),
        (["table-digits", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["table-digits", "--epochs", "0"], "--epochs must be at least 1 each, got 0"),
        (["table-digits", "--epochs", "ten"], "ten"),
        (["table-digits", "--corrections", "none,lyer"], "did you mean layer?"),
        (["table-digits", "--workers", "0"], "--workers must be at least 1, got 0"),
        (["table-digits", "--reach", "100"], "--reach must be between 0 and 100 percent, got 100"),
        (["table-digits", "--dry-run", "--tabulate-only"], "give one of them"),
        (["table-cifar100-set-renorm", "--lr-controls"], "--lr-controls must name"),
    ],
)
def test_bad_input_is_named_in_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err.strip()
    assert message in err
    assert "\n" not in err
