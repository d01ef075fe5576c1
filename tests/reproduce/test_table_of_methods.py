"""The table of methods: one command trains them all, and says what they reach and what they cost."""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

import sparseopt as so
from sparseopt.lab.commands.reproduce import main
from sparseopt.lab.config.recipes import MethodName
from sparseopt.lab.reproduce.grid import METHODS, Grid
from sparseopt.lab.reproduce.scale import Scale, sentence
from sparseopt.lab.reproduce.targets import METHODS_TABLE, TARGETS, Target


@pytest.fixture(autouse=True)
def on_digits(digits: Target) -> Iterator[None]:
    """The command knows the table of methods on digits."""
    with pytest.MonkeyPatch.context() as patch:
        target = replace(METHODS_TABLE, name="methods-digits", recipe=digits.recipe, epochs=(2,))
        patch.setitem(TARGETS, target.name, target)
        yield


def test_it_has_every_method_that_can_have_any_sparsity() -> None:
    grid = Grid(METHODS_TABLE, Scale.of(METHODS_TABLE))
    assert {row.method for row in grid.rows} == set(get_args(MethodName)) - {"dense", "nm", "srste"}
    assert {row.sparsity for row in grid.rows} == {0.95}
    assert {config.epochs for config in grid.configs()} == {20}
    assert {config.seed for config in grid.configs()} == {0, 1}
    assert {config.correction for config in grid.configs()} == {"none"}
    assert {config.recipe for config in grid.configs()} == {"cifar100-resnet20"}
    assert set(METHODS) == set(get_args(MethodName))


def test_it_does_not_pass_for_the_papers() -> None:
    grid = Grid(METHODS_TABLE, replace(Scale.of(METHODS_TABLE), epochs=(3,), methods=("rigl", "set")))
    assert not grid.papers
    assert all(grid.setting(row) is None for row in grid.rows)
    told = sentence(grid.target, grid.scale)
    assert "the paper" not in told
    assert "3 epochs (this table: 20)" in told
    assert "rigl, set alone" in told


def test_a_method_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods-digits", "--methods", "rigl,gmpp", "--dry-run"]) == 2
    assert "--methods has no 'gmpp' (did you mean gmp?)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_dense_row_and_one_whose_masks_are_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    argv = ["methods-digits", "--out", str(tmp_path), "--threads", "1", "--seeds", "1", "--epochs", "1"]
    argv += ["--methods", "dense,set"]
    folder = tmp_path / "methods-digits"
    for expected in (True, False):
        assert main(argv) == 0
        lines = (folder / "results.csv").read_text().splitlines()
        rows = {row["dst"]: row for row in csv.DictReader(lines)}
        assert rows["dense"]["training_flops"] == "1.0"
        assert bool(rows["set"]["training_flops"]) == expected
        assert (folder / "index.html").exists()
        (model,) = tmp_path.glob("**/*-set-*/model.safetensors")
        model.write_bytes(b"damaged")
    assert f"{model} cannot be read" in caplog.text


@pytest.mark.slow
def test_one_command_makes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["methods-digits", "--out", str(tmp_path), "--threads", "1", "--accelerate", "on", "--seeds", "1"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert all(METHODS[name] in out for name in METHODS_TABLE.methods)
    folder = tmp_path / "methods-digits"
    text = (folder / "results.md").read_text()
    assert "Verdict" not in text
    assert "the paper:" not in text.lower()
    assert "the paper's" not in text.lower()
    assert (folder / "methods.tex").exists()
    rows = {row["dst"]: row for row in csv.DictReader((folder / "results.csv").read_text().splitlines())}
    assert list(rows) == list(METHODS_TABLE.methods)
    # Layers of 784 x 16, 16 x 12 and 12 x 10: the cost of a layer is its density.
    active = so.topology.active_counts({"a": (16, 784), "b": (12, 16), "c": (10, 12)}, 0.95, "erk")
    share = sum(active.values()) / (784 * 16 + 16 * 12 + 12 * 10)
    for name in ("static", "set", "rigl", "gse", "mest", "deepr"):
        assert float(rows[name]["inference_flops"]) == pytest.approx(share)
    assert float(rows["static"]["training_flops"]) == pytest.approx(share)
    # 20 steps, the masks updated at 4, 8 and 12; three products a step, one of them dense at an update.
    assert float(rows["rigl"]["training_flops"]) == pytest.approx(share + 3 / 20 * (1 - share) / 3)
    assert float(rows["gmp"]["training_flops"]) > float(rows["rigl"]["training_flops"])
    assert float(rows["static"]["itop_rate"]) == pytest.approx(100 * share)
    assert float(rows["gmp"]["itop_rate"]) == 100.0
    lines = [line.split(" | ") for line in text.splitlines()]
    kernels = {cells[3]: cells[-1] for cells in lines if len(cells) == 11}
    assert "3 layers" in kernels["SET"]
    assert "dense gradients" in kernels["SNFS"]
    # On another machine there are no masks, but their densities are known.
    elsewhere = [
        *argv[:1],
        "--out",
        str(tmp_path / "there"),
        *argv[3:],
        "--tabulate-only",
        "--known",
        str(folder),
    ]
    assert main(elsewhere) == 0
    text = (tmp_path / "there" / "methods-digits" / "results.csv").read_text()
    known = {row["dst"]: row for row in csv.DictReader(text.splitlines())}
    for name, row in rows.items():
        assert (known[name]["inference_flops"], known[name]["training_flops"]) == (
            row["inference_flops"],
            row["training_flops"],
        )


@pytest.mark.slow
def test_a_dry_run_tells_the_hours_of_every_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["methods-digits", "--out", str(tmp_path), "--threads", "1", "--accelerate", "on", "--dry-run"]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert "Linear" not in err, "not a table of layers for every method"
    assert "28 runs, 0 done, 28 to train:" in out
    assert all(METHODS[name] in out for name in METHODS_TABLE.methods)
