"""`sparseopt report`: what the page says about the runs, and what it refuses."""

import csv
import hashlib
import json
import math
import re
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from markupsafe import Markup
from matplotlib.figure import Figure

from sparseopt.lab.commands.export import main as export
from sparseopt.lab.commands.report import main
from sparseopt.lab.report import Drawing, Section, write_report
from sparseopt.lab.report.baseline import difference_table, differences, read_baseline
from sparseopt.lab.report.cautions import cautions
from sparseopt.lab.report.charts import chart_data, read_layers
from sparseopt.lab.report.masks import fan_in_by_layer
from sparseopt.lab.report.study import Study
from sparseopt.lab.report.tables import ReportTable, compared, every_run, results, shared
from sparseopt.lab.runs.catalogue import Run, find_runs, survey
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.show.table import Table
from sparseopt.lab.system.files import write_json
from sparseopt.lab.training.train import train

Maker = Any


@pytest.fixture
def sweep(make: Maker, tmp_path: Path) -> Path:
    """Two corrections with three seeds each."""
    for correction in ("none", "layer"):
        for seed in range(3):
            make.run(tmp_path / f"{correction}-{seed}", correction=correction, seed=seed)
    return tmp_path


def column(grid: ReportTable, title: str) -> list[str]:
    return [row[grid.columns.index(title)].text for row in grid.rows]


def sentences(folder: Path, *, left_out: tuple[str, ...] = ()) -> str:
    """All warnings about the runs in a folder."""
    found = cautions(Study(find_runs(folder)), left_out, ())
    return "\n".join(line for caution in found for line in (caution.sentence, *caution.about))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_page_is_written_and_nothing_else_changes(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(sweep)
    assert main([str(sweep)]) == 0
    page = sweep / "report.html"
    assert capsys.readouterr().out.strip() == str(page)
    after = contents(sweep)
    assert after.pop("report.html").startswith(b"<!doctype html>")
    assert after == before


def test_page_goes_where_it_is_told(sweep: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    assert main([str(sweep), "--out", str(out)]) == 0
    assert out.is_file()
    assert not (sweep / "report.html").exists()


def test_results_are_mean_and_deviation_over_seeds(sweep: Path, make: Maker) -> None:
    grid = results(Study(find_runs(sweep)))
    assert column(grid, "correction") == ["layer", "none"]
    assert column(grid, "seeds") == ["3", "3"]
    values = [100 * make.accuracy(make.config(correction="layer", seed=seed), 5) for seed in range(3)]
    assert column(grid, "test accuracy (%)")[0] == f"{fmean(values):.2f} ± {stdev(values):.2f}"


def test_a_dense_run_beside_accelerated_ones_is_no_other_environment(tmp_path: Path, make: Maker) -> None:
    for method in ("dense", "set"):
        train(make.config(method=method, epochs=1), tmp_path / method, accelerate="on")
    assert "storage" not in sentences(tmp_path)


def test_unfinished_runs_do_not_count(make: Maker, tmp_path: Path) -> None:
    make.run(tmp_path / "a", seed=0)
    make.run(tmp_path / "b", seed=1, done=2)
    grid = results(Study(find_runs(tmp_path)))
    accuracy = 100 * make.accuracy(make.config(seed=0), 5)
    assert column(grid, "seeds") == ["1 of 2"]
    assert column(grid, "test accuracy (%)") == [f"{accuracy:.2f}"]
    assert "b: epoch 2 of 5" in sentences(tmp_path)


def test_settings_stand_once_if_shared_and_by_run_if_not(make: Maker, tmp_path: Path) -> None:
    make.run(tmp_path / "a", lr=0.1, torch="2.12.0")
    make.run(tmp_path / "b", lr=0.05, torch="2.13.0")
    make.run(tmp_path / "dense", method="dense", lr=0.1)
    study = Study(find_runs(tmp_path))
    common = dict(zip(column(shared(study), "setting"), column(shared(study), "value"), strict=True))
    assert common["momentum"] == "0.9"
    assert common["sparsity"] == "0.95"
    assert common["hidden"] == "8, 6"
    assert not {"lr", "torch", "method"} & common.keys()
    grid = every_run(study)
    told = dict(zip(column(grid, "run"), column(grid, "lr"), strict=True))
    assert told == {"a": "0.1", "b": "0.05", "dense": "0.1"}
    assert set(column(grid, "torch")) == {"2.12.0", "2.13.0"}
    values = dict(
        zip(column(compared(study), "setting"), column(compared(study), "values (runs)"), strict=True)
    )
    assert values == {"lr": "0.05 (1), 0.1 (2)", "method": "dense (1), set (2)"}


def test_warnings_tell_what_is_wrong(make: Maker, tmp_path: Path) -> None:
    for seed in range(3):
        make.run(tmp_path / "good" / str(seed), seed=seed)
    assert sentences(tmp_path) == ""
    failed = make.run(tmp_path / "failed", seed=7, done=1)
    write_json(RunDir(failed).diverged_file, {"step": 40, "reason": "the loss became nan at step 40"})
    again = RunDir(make.run(tmp_path / "again", seed=0))
    again.write_metrics([row | {"seconds": 3.0 * row["epoch"]} for row in again.metrics()])
    make.run(tmp_path / "other", lr=0.5, torch="2.12.0")
    make.run(tmp_path / "stopped", lr=0.5, seed=1, done=0)
    lost = make.run(tmp_path / "lost", lr=0.5, seed=2)
    RunDir(lost).write_metrics(make.rows(make.config(), 3))
    told = sentences(tmp_path, left_out=("x is damaged",))
    assert "1 run " in told
    assert "x is damaged" in told
    assert "nan at step 40" in told
    assert "seed 0: 2 times" in told
    assert "torch: 2.13.0, 2.12.0" in told
    assert "stopped: epoch 0 of 5" in told
    assert "lost: 3 of 5 epochs" in told
    assert "lr 0.5: 1 finished seed" in told


def test_a_run_in_progress_is_told_as_one(make: Maker, tmp_path: Path) -> None:
    with RunDir(make.run(tmp_path / "a", done=2)).locked():
        assert "1 run is still running" in sentences(tmp_path)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", '{"config": {'),
        ("config.json", None),
        ("metrics.jsonl", '{"epoch": 1\n'),
        ("metrics.jsonl", '{"epoch": 1}\n'),
        ("metrics.jsonl", "[]\n"),
        ("metrics.jsonl", "\udcff\n"),
    ],
)
def test_damaged_run_is_left_out_and_told(
    sweep: Path, file: str, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    broken = sweep / "none-0" / file
    if text is None:
        broken.unlink()
    else:
        broken.write_bytes(text.encode(errors="surrogateescape"))
    assert main([str(sweep)]) == 0
    page = unescape((sweep / "report.html").read_text())
    assert "1 run " in page
    assert str(broken.parent) in page
    assert str(broken.parent) in caplog.text
    assert "5 runs" in page


def test_nothing_but_damaged_runs_is_refused(
    make: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (make.run(tmp_path / "a") / "config.json").write_text("")
    assert main([str(tmp_path)]) == 2
    assert "no run" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_folder_without_runs_and_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"no run in {tmp_path}" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_several_data_sets_are_refused(
    make: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make.run(tmp_path / "a")
    make.run(tmp_path / "b", data="mnist")
    assert main([str(tmp_path)]) == 2
    complaint = capsys.readouterr().err
    assert f"digits (1, such as {tmp_path / 'a'}) and mnist (1, such as {tmp_path / 'b'})" in complaint
    assert "a folder of its own" in complaint
    assert not (tmp_path / "report.html").exists()


def test_fan_in_by_hand(make: Maker, tmp_path: Path) -> None:
    """Fan-in 1, 4, 1, 4 has mean 2.5: spread 1.5 / 2.5, factors sqrt(0.4) and sqrt(1.6)."""
    folder = make.run(tmp_path / "a")
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[:, 0] = True
    mask[1::2, :4] = True
    make.masks(folder, {"1.weight": mask})
    (layer,) = fan_in_by_layer(Run.read(folder)).values()
    assert layer.spread == pytest.approx(0.6)
    assert layer.factor_spread == pytest.approx((1.6**0.5 - 0.4**0.5) / 2)
    assert layer.quantiles == pytest.approx([0.4, 0.4, 1.0, 1.6, 1.6])


def test_fan_in_is_that_of_the_masks_wherever_they_are_read(make: Maker, tmp_path: Path) -> None:
    """A real run has checkpoints; without them, what `sparseopt export` wrote serves as well."""
    summary = train(make.config(epochs=1, every=5, sparsity=0.8), tmp_path / "a")
    assert summary.experiment is not None
    topology = summary.experiment.topology
    assert topology is not None
    exact = fan_in_by_layer(Run.read(tmp_path / "a"))
    assert list(exact) == ["layer 1 (8 neurons)", "layer 4 (6 neurons)", "layer 7 (10 neurons)"]
    for name, layer in zip(topology.layers, exact.values(), strict=True):
        fan_in = topology.fan_in(name).double()
        assert layer.spread == pytest.approx(float(fan_in.std(correction=0) / fan_in.mean()))
    assert export([str(tmp_path / "a")]) == 0
    RunDir(tmp_path / "a").model_file.unlink()  # which carries them as well
    assert fan_in_by_layer(Run.read(tmp_path / "a")) == exact
    (tmp_path / "a" / "checkpoints").rename(tmp_path / "elsewhere")
    assert fan_in_by_layer(Run.read(tmp_path / "a")) == exact
    RunDir(tmp_path / "a").packed_file.unlink()
    assert fan_in_by_layer(Run.read(tmp_path / "a")) == {}


def test_damaged_network_costs_its_figures_and_no_more(make: Maker, tmp_path: Path) -> None:
    folder = make.run(tmp_path / "a")
    RunDir(folder).packed_file.write_bytes(b"half of a netw")
    assert main([str(tmp_path)]) == 0
    page = unescape((tmp_path / "report.html").read_text())
    assert "1 network " in page
    assert "sparse.safetensors" in page


def test_numbers_that_are_not_finite_are_gaps(make: Maker, tmp_path: Path) -> None:
    folder = make.run(tmp_path / "a")
    rows = make.rows(make.config(), 5)
    rows[2]["test_loss"] = float("inf")
    RunDir(folder).write_metrics(rows)
    study = Study(find_runs(tmp_path))
    (run,) = chart_data(study, read_layers(study)[0])["runs"]
    assert run["curves"]["test_loss"][2] is None
    assert run["curves"]["test_loss"][3] == pytest.approx(rows[3]["test_loss"], rel=1e-5)


class Page(HTMLParser):
    """What a browser would find: scripts by type, whatever refers elsewhere, and headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.scripts: list[str] = []
        self.policy = ""
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        self.references += [values[name] for name in ("src", "href", "srcset", "action") if name in values]
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


HOSTILE = ("<script>alert(1)", "a<!--<script>", "x&lt;b\u2028'\"", "<img src=x onerror=alert(1)>")


def test_names_are_data(make: Maker, tmp_path: Path) -> None:
    for seed, name in enumerate(HOSTILE):
        make.run(tmp_path / name, seed=seed)
    assert main([str(tmp_path)]) == 0
    page = Page((tmp_path / "report.html").read_text())
    assert len(page.scripts) == 3
    assert {run["name"] for run in json.loads(page.scripts[0])["runs"]} == set(HOSTILE)
    assert [each for each in page.references if not each.startswith("#")] == []


def test_policy_forbids_the_network_and_knows_its_scripts(sweep: Path) -> None:
    assert main([str(sweep)]) == 0
    page = Page((sweep / "report.html").read_text())
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "unsafe" not in rules["script-src"]
    assert rules["script-src"].count("sha256-") == 2
    assert "Permission is hereby granted" in page.scripts[1]  # uPlot's licence goes wherever it goes


def test_bundled_library_is_the_published_one() -> None:
    """A file of somebody else's is either what its record says or not to be shipped."""
    vendor = files("sparseopt.lab.report").joinpath("vendor")
    record = json.loads(vendor.joinpath("uplot.json").read_text())
    for name, digest in record["sha256"].items():
        assert hashlib.sha256(vendor.joinpath(name).read_bytes()).hexdigest() == digest, name
    assert f"v{record['version']}" in vendor.joinpath("uPlot.iife.min.js").read_text()[:80]
    assert "MIT" in vendor.joinpath("LICENSE").read_text()


def test_sections_come_first_and_only_markup_is_markup(sweep: Path) -> None:
    figure = Figure()
    figure.subplots().plot([1, 2, 3])
    table = Table(("a", "b"), [("<i>x</i>", Markup("<strong>2</strong>"))], ["so much <b>for</b> that"])
    section = Section(
        "Mine <first>", "Act 1", ["1 < 2"], [Drawing(figure, "a line")], [table], Markup("<hr>")
    )
    write_report(find_runs(sweep), sweep / "page.html", title="T & T", sections=[section])
    page = (sweep / "page.html").read_text()
    assert "<title>T &amp; T</title>" in page
    assert "Mine &lt;first&gt;</h2>" in page
    assert "1 &lt; 2" in page
    assert "&lt;i&gt;x&lt;/i&gt;" in page
    assert "<strong>2</strong>" in page
    assert "<hr>" in page
    assert "&lt;b&gt;for&lt;/b&gt;" in page
    assert page.index("Mine &lt;first&gt;</h2>") < page.index("Results</h2>")
    assert re.search(r'aria-label="a line"><svg', page)


@pytest.fixture
def paired(make: Maker, tmp_path: Path) -> Path:
    """Two sparsities with and without the correction, three seeds each; the correction adds 0.05 before the curve's factor."""
    for seed in range(3):
        for sparsity in (0.8, 0.9):
            for correction in ("none", "layer"):
                folder = tmp_path / f"{sparsity}-{correction}-{seed}"
                make.run(folder, seed=seed, sparsity=sparsity, correction=correction)
    return tmp_path


def test_differences_from_a_chosen_baseline_are_paired(make: Maker, paired: Path) -> None:
    study = Study(survey(paired).runs)
    found = differences(study, read_baseline(["correction=none"]))
    assert [each.group.settings["sparsity"] for each in found] == [0.8, 0.9]
    factor = 1 - math.exp(-5 / 2)
    for each in found:
        assert each.seeds == [0, 1, 2]
        assert each.accuracy.mean == pytest.approx(0.05 * factor)
    (path, *_) = difference_table(study, found).rows
    assert f"{5 * factor:+.2f}" in [cell.text for cell in path]


def test_a_seed_that_was_trained_twice_counts_once_by_its_mean(make: Maker, paired: Path) -> None:
    again = make.run(paired / "again", seed=0, sparsity=0.8, correction="layer")
    rows = [json.loads(line) for line in (again / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["test_accuracy"] += 0.3
    (again / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = survey(paired).runs
    for order in (runs, runs[::-1]):
        found, _ = differences(Study(order), read_baseline(["correction=none"]))
        assert found.seeds == [0, 1, 2]
        assert found.accuracy.mean == pytest.approx(0.05 * (1 - math.exp(-5 / 2)) + 0.15 / 3)


def test_a_finished_run_that_lost_its_last_rows_does_not_count(make: Maker, paired: Path) -> None:
    file = paired / "0.8-layer-0" / "metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    found, _ = differences(Study(survey(paired).runs), read_baseline(["correction=none"]))
    assert found.seeds == [1, 2]


def test_tables_are_written_for_programs_and_papers(paired: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--baseline", "correction=none", "--tables", "csv", "json", "latex"]
    assert main([str(paired), *arguments]) == 0
    names = {Path(line).name for line in capsys.readouterr().out.split()}
    assert {"report.html", "report-results.csv", "report-differences.json", "report-results.tex"} <= names
    records = json.loads((paired / "report-results.json").read_text())
    rows = list(csv.DictReader((paired / "report-results.csv").read_text().splitlines()))
    assert len(records) == len(rows) == 4
    assert [float(row["test_accuracy"]) for row in rows] == [each["test_accuracy"] for each in records]
    assert rows[0]["seeds"] == "0 1 2"
    differing = json.loads((paired / "report-differences.json").read_text())
    assert [len(each["test_accuracy_by_seed"]) for each in differing] == [3, 3]
    latex = (paired / "report-results.tex").read_text()
    assert latex.count(r"\\") == 5
    assert r"$\pm$" in latex
    assert "Against the baseline: correction none" in (paired / "report.html").read_text()


@pytest.mark.parametrize(
    ("baseline", "complaint"),
    [
        ("correction", "write a setting and its value"),
        ("corection=none", "did you mean correction?"),
        ("correction=global", "no configuration here has these settings; there are correction: layer, none"),
    ],
)
def test_a_baseline_that_is_none(
    paired: Path, baseline: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(paired), "--baseline", baseline]) == 2
    assert complaint in capsys.readouterr().err
