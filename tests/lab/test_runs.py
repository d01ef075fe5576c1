import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from sparseopt.lab.commands import plot as plot_command
from sparseopt.lab.commands import runs as runs_command
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.catalogue import Run, archive, find_runs, labels
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.show.curves import draw_curves
from sparseopt.lab.training.train import train
from sparseopt.lab.training.trainer import Diverged, Observer, Trainer

Small = Callable[..., Config]


@pytest.fixture(scope="module")
def folder(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished, a stopped and a diverged run, one of them in a folder below."""
    folder = tmp_path_factory.mktemp("runs")
    train(small(epochs=2), folder / "finished")
    train(small(epochs=2, method="dense"), folder / "below" / "dense")

    class Failing(Observer):
        def stepped(self, trainer: Trainer) -> None:
            if trainer.step == 15:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        train(small(epochs=2, method="set"), folder / "stopped", observers=[Failing()])
    with pytest.raises(Diverged):
        train(small(method="dense", lr=1e25, max_grad_norm=None), folder / "diverged")
    return folder


def test_runs_are_found_with_their_state(folder: Path) -> None:
    found = {str(run.path.relative_to(folder)): run for run in find_runs(folder)}
    assert {name: run.state for name, run in found.items()} == {
        "below/dense": "finished",
        "diverged": "diverged",
        "finished": "finished",
        "stopped": "stopped",
    }
    assert len(found["stopped"].rows) == 1
    with RunDir(folder / "stopped").locked():
        assert Run.read(folder / "stopped").state == "running"


def test_what_is_no_run_is_left_out_and_named(
    small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(small(epochs=1), tmp_path / "good")
    train(small(epochs=1), tmp_path / "damaged")
    (tmp_path / "damaged" / "metrics.jsonl").write_text("{\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"architectures": []}')
    assert [run.path.name for run in find_runs(tmp_path)] == ["good"]
    assert "damaged/metrics.jsonl" in caplog.text
    assert "other/config.json" in caplog.text


def test_archived_runs_are_found_without_their_folders(folder: Path, tmp_path: Path) -> None:
    ended = [run for run in find_runs(folder) if run.state in ("finished", "diverged")]
    archive(find_runs(folder), tmp_path / "runs.jsonl")
    again = find_runs(tmp_path)
    assert [run.path.parent for run in again] == [tmp_path] * 3
    for name in ("config", "rows", "state", "environment"):
        assert [getattr(run, name) for run in again] == [getattr(run, name) for run in ended]


def test_a_run_archived_beside_its_folder_counts_once(small: Small, tmp_path: Path) -> None:
    train(small(epochs=1), tmp_path / "runs" / "one")
    archive(find_runs(tmp_path), tmp_path / "runs.jsonl")
    (tmp_path / "copy").mkdir()
    archive(find_runs(tmp_path), tmp_path / "copy" / "runs.jsonl")
    assert [run.path for run in find_runs(tmp_path)] == [tmp_path / "runs" / "one"]
    assert [run.path.name for run in find_runs(tmp_path / "copy")] == ["one"]


DAMAGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no run": lambda line: line.clear(),
    "a path for a name": lambda line: line.update(name="../one"),
    "a folder above for a name": lambda line: line.update(name=".."),
    "an endless name": lambda line: line.update(name="x" * 300),
    "a name that is no text": lambda line: line.update(name="a\0b"),
    "a name with braces, and no metric": lambda line: line.update(name="{x}", metrics={"epoch": [1]}),
    "an impossible setting": lambda line: line["record"]["config"].update(epochs=-3),
    "no time": lambda line: line["metrics"].update(seconds=[float("inf")]),
    "another state": lambda line: line.update(state="running"),
    "no configuration": lambda line: line["record"].pop("config"),
    "a setting that does not exist": lambda line: line["record"]["config"].update(depth=3),
    "metrics of different lengths": lambda line: line["metrics"]["epoch"].append(2),
    "metrics that lack one": lambda line: line["metrics"].pop("test_accuracy"),
    "no metrics": lambda line: line.update(metrics=3),
    "densities that are no shares": lambda line: line.update(densities={"fc.weight": 1.5}),
    "densities of no layers": lambda line: line.update(densities=[0.5]),
}


@pytest.mark.parametrize("change", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_left_out_and_named(
    change: Callable[[dict[str, Any]], object], small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(small(epochs=1), tmp_path / "one")
    file = tmp_path / "archive" / "runs.jsonl"
    file.parent.mkdir()
    archive(find_runs(tmp_path), file)
    good = file.read_text()
    line = json.loads(good)
    change(line)
    file.write_text(json.dumps(line) + "\n\n" + good)
    assert [run.path.name for run in find_runs(file.parent)] == ["one"]
    assert str(file) in caplog.text


def test_an_archive_keeps_what_it_holds(small: Small, tmp_path: Path) -> None:
    train(small(epochs=1), tmp_path / "a" / "one")
    train(small(epochs=1, seed=1), tmp_path / "b" / "one")
    file = tmp_path / "archive" / "runs.jsonl"
    file.parent.mkdir()
    for folder in ("a", "b", "a"):
        archive(find_runs(tmp_path / folder), file)
    found = find_runs(file.parent)
    assert sorted(run.config.seed for run in found) == [0, 1]
    assert {run.path.name for run in found} == {"one", "one-2"}
    told = [replace(run, densities={"1.weight": 0.2}) for run in found]
    for runs in (told, found):  # who does not know the densities leaves them
        archive(runs, file)
        assert [run.densities for run in find_runs(file.parent)] == [{"1.weight": 0.2}] * 2
    file.write_text("{}\n")
    with pytest.raises(UserError, match="line 1 of"):
        archive(find_runs(tmp_path / "a"), file)


def test_the_same_settings_on_another_machine_are_another_run(small: Small, tmp_path: Path) -> None:
    train(small(epochs=1), tmp_path / "one")
    (run,) = find_runs(tmp_path)
    other = replace(run, rows=[{**run.rows[0], "test_accuracy": 0.123}])
    (tmp_path / "other").mkdir()
    archive([other], tmp_path / "other" / "runs.jsonl")
    assert len(find_runs(tmp_path)) == 2


def test_the_table_lists_every_run_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs_command.main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    accuracy = json.loads((folder / "finished" / "summary.json").read_text())["test_accuracy"]
    (line,) = [line for line in lines if line.startswith(" finished")]
    assert f"{accuracy:.2%}" in line
    assert "2/2" in line
    (line,) = [line for line in lines if " stopped " in line and line.startswith(" stopped")]
    assert "1/2" in line
    assert any("below/dense" in line for line in lines)


def test_the_table_fits_80_columns(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sparseopt.lab.show.terminal.WIDE", 80)
    assert runs_command.main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    (line,) = [line for line in lines if line.startswith(" finished")]
    assert "finished" in line[10:]
    assert "2/2" in line
    assert "%" in line
    assert "…" not in "".join(lines)  # nothing is cut
    assert "hidden" in "".join(lines)  # what is unusual stands below the name


def test_an_empty_folder_and_none_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs_command.main([str(tmp_path)]) == 0
    assert "no runs" in capsys.readouterr().out
    assert runs_command.main([str(tmp_path / "nothing")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_labels_are_the_settings_that_differ(folder: Path) -> None:
    runs = [Run.read(folder / name) for name in ("finished", "below/dense")]
    assert labels(runs) == ["rigl", "dense"]
    assert labels(runs[:1]) == ["finished"]
    assert labels([runs[0], runs[0]]) == ["finished", "finished"]


def test_labels_name_numbers(small: Small, tmp_path: Path) -> None:
    runs = [Run(tmp_path, small(lr=lr, ham=lr > 0.1), [], "stopped") for lr in (0.1, 0.2)]
    assert labels(runs) == ["lr 0.1, no ham", "lr 0.2, ham"]
    runs = [Run(tmp_path, small(max_grad_norm=norm), [], "stopped") for norm in (None, 0.5)]
    assert labels(runs) == ["no max grad norm", "max grad norm 0.5"]


def test_the_legend_of_many_settings_fits_into_the_picture(folder: Path) -> None:
    run = Run.read(folder / "finished")
    changes = {
        "lr": 0.123,
        "momentum": 0.87,
        "warmup_epochs": 0.5,
        "drop_fraction": 0.25,
    }
    runs = [
        replace(run, config=replace(run.config, weight_decay=0.0123 * seed, **changes)) for seed in range(5)
    ]
    figure = draw_curves([run, *runs])
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 8  # six runs, test, train
    assert_whole(figure)


def assert_whole(figure: Figure) -> None:
    """The legend lies within the picture, and the axes keep their size."""
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert 0 <= box.y0 < box.y1 <= figure.bbox.height
    assert min(axis.get_window_extent().height for axis in figure.axes) > 0.8 * figure.dpi


def test_thirty_runs_have_thirty_colours_and_a_legend_that_is_whole(folder: Path) -> None:
    run = Run.read(folder / "finished")
    runs = [replace(run, config=replace(run.config, lr=0.01 * number)) for number in range(1, 31)]
    figure = draw_curves(runs)
    colors = [line.get_color() for line in figure.axes[2].lines]
    assert len(set(map(str, colors))) == 30
    assert_whole(figure)


def test_seeds_become_a_mean_with_a_band(folder: Path) -> None:
    run = Run.read(folder / "finished")
    rows = [{**row, "itop_rate": row["itop_rate"] + 0.1} for row in run.rows]
    other = replace(run, config=replace(run.config, seed=1), rows=rows)
    figure = draw_curves([run, other])
    itop = figure.axes[2]
    (line,) = itop.lines
    expected = [row["itop_rate"] + 0.05 for row in run.rows]
    assert list(map(float, line.get_ydata())) == pytest.approx(expected)  # pyright: ignore[reportArgumentType]
    assert len(itop.collections) == 1
    (legend,) = figure.legends
    assert "2 seeds" in legend.get_texts()[0].get_text()
    assert_whole(figure)


def test_curves_show_every_run_at_every_epoch(folder: Path) -> None:
    runs = [Run.read(folder / name) for name in ("finished", "below/dense", "stopped")]
    figure = draw_curves(runs)
    accuracy, _, itop = figure.axes[:3]
    drawn = [list(map(float, line.get_ydata())) for line in accuracy.lines]  # pyright: ignore[reportArgumentType]
    assert drawn == [
        [row[name] for row in run.rows] for run in runs for name in ("test_accuracy", "train_accuracy")
    ]
    assert len(itop.lines) == 2  # the dense run explores nothing


@pytest.mark.slow
def test_plot_writes_png_and_pdf(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(folder / name) for name in ("finished", "stopped")]
    assert plot_command.main([*names, "--out", str(tmp_path / "both")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "both.png"), str(tmp_path / "both.pdf")]
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "both.pdf").read_bytes().startswith(b"%PDF")
    assert plot_command.main(names[:1]) == 0
    assert (folder / "finished" / "curves.png").exists()
    assert plot_command.main([str(folder), "--out", str(tmp_path / "a.png")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "both.pdf", "both.png"]


@pytest.mark.parametrize(
    ("names", "complaint"),
    [([], "name one or more"), (["nothing"], "there is no folder"), (["diverged"], "completed an epoch")],
)
def test_what_cannot_be_drawn_is_one_line(
    folder: Path, names: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plot_command.main([str(folder / name) for name in names]) == 2
    assert complaint in capsys.readouterr().err


def test_reading_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="folder of a run"):
        Run.read(tmp_path)


def test_a_copy_is_not_another_run(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "b"):
        shutil.copytree(folder / "finished", tmp_path / name)
    assert [run.path.name for run in find_runs(tmp_path)] == ["a"]
    assert "copy" in caplog.text


def test_runs_behind_links_are_found_once(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder / "finished", target_is_directory=True)
    (tmp_path / "round").symlink_to(tmp_path, target_is_directory=True)
    assert [run.path for run in find_runs(tmp_path)] == [tmp_path / "link"]


def test_a_summary_without_its_numbers_is_told(small: Small, tmp_path: Path) -> None:
    train(small(epochs=1), tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match=r"summary\.json .*remove it"):
        train(small(epochs=1), tmp_path)
