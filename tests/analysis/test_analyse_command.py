"""`sparseopt analyse`: every analysis writes its figure and numbers, and says what is wrong in one line."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparseopt.lab.analyses import ANALYSES
from sparseopt.lab.analyses.two_neurons import share_interval
from sparseopt.lab.commands.analyse import main
from sparseopt.lab.config.recipes import RECIPES
from sparseopt.lab.show.figures import save
from sparseopt.lab.training.train import train

pytestmark = pytest.mark.slow

TWINS = ["--seeds", "2", "--batches", "4", "--hidden", "16"]
STUDENTS = ["--seeds", "6", "--time", "20"]
QUICK = {
    "bn-ratio": [*TWINS, "--sparsities", "0", "0.5", "0.9"],
    "fan-in": [*TWINS, "--steps", "0", "3", "--training-seeds", "1"],
    "ln-ratio": [*TWINS, "--sparsities", "0.5", "0.9"],
    "one-neuron": [*STUDENTS, "--rates", "0.1"],
    "two-neurons": STUDENTS,
    "balance": STUDENTS,
}


def _analyse(name: str, folder: Path, *options: str) -> dict[str, Any]:
    assert main([name, *options, "--out", str(folder)]) == 0
    record = json.loads((folder / f"{name}.json").read_text(), parse_constant=_refuse)
    assert record["analysis"] == name
    assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    return record


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense run, and two of RigL that differ in their seed."""
    folder = tmp_path_factory.mktemp("runs")
    config = replace(RECIPES["digits-mlp"], epochs=2, hidden=(24,), every=5, sparsity=0.8)
    train(replace(config, method="dense"), folder / "dense")
    for seed in (0, 1):
        train(replace(config, seed=seed), folder / f"rigl{seed}")
    return folder


@pytest.mark.parametrize("name", QUICK)
def test_figure_is_made_from_the_written_numbers_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = _analyse(name, tmp_path, *QUICK[name])
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / f"{name}.json")
    again = save(ANALYSES[name].draw(record["result"]), tmp_path / "again")
    assert again[0].read_bytes() == (tmp_path / f"{name}.png").read_bytes()
    assert ANALYSES[name].table(record["result"]).rows


def test_settings_and_seed_decide_the_numbers(tmp_path: Path) -> None:
    options = ["--seeds", "1", "--batches", "2", "--hidden", "8", "--sparsities", "0.5"]
    first, again, other = (
        _analyse("bn-ratio", tmp_path / folder, *options, "--seed", seed)
        for folder, seed in (("a", "3"), ("b", "3"), ("c", "4"))
    )
    assert first["settings"]["seed"] == 3
    assert first["result"] == again["result"]
    assert first["result"] != other["result"]


def test_batch_norm_ratio_follows_theory_on_the_embedded_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARSEOPT_DATA", raising=False)
    monkeypatch.setenv("SPARSEOPT_CACHE", str(tmp_path))
    options = ["--seeds", "2", "--batches", "20", "--sparsities", "0.5", "0.8"]
    result = _analyse("bn-ratio", tmp_path, *options)["result"]
    assert "digits" in result["inputs"]
    for seed in result["curves"]["batch"]["preactivation"]:
        assert seed == pytest.approx([2**0.5, 5**0.5], rel=0.1)
    for seed in result["curves"]["none"]["weight"]:
        assert seed == pytest.approx([1, 1], abs=0.2)


@pytest.mark.skipif("SPARSEOPT_DATA" not in os.environ, reason="needs the MNIST files")
def test_real_mnist_is_used_where_its_files_are(tmp_path: Path) -> None:
    folder = os.environ["SPARSEOPT_DATA"]
    options = ["--seeds", "1", "--batches", "20", "--sparsities", "0.5", "--data-dir", folder]
    result = _analyse("bn-ratio", tmp_path, *options)["result"]
    assert "60,000" in result["inputs"]
    assert result["curves"]["batch"]["preactivation"][0] == pytest.approx([2**0.5], rel=0.1)


def test_gaussian_inputs_are_an_option(tmp_path: Path) -> None:
    options = [*TWINS, "--inputs", "gaussian", "--sparsities", "0.5"]
    assert "Gaussian" in _analyse("bn-ratio", tmp_path, *options)["result"]["inputs"]


def test_skew_of_a_run_and_of_a_checkpoint(runs: Path, tmp_path: Path) -> None:
    result = _analyse("skew", tmp_path, str(runs / "rigl0"))["result"]
    assert set(result["layers"]) == {"1.weight", "4.weight"}
    earlier, last = sorted((runs / "rigl0" / "checkpoints").glob("*.ckpt"))
    of_file = _analyse("skew", tmp_path, str(last))["result"]
    assert of_file["layers"] == result["layers"]
    assert _analyse("skew", tmp_path, str(earlier))["result"]["step"] < result["step"]
    assert result["correction"] == "layer"
    measured = _analyse("skew", tmp_path, str(last), "--correction", "measured")["result"]["layers"][
        "1.weight"
    ]
    assert measured["corrected_norm_slope"] == pytest.approx(measured["norm_slope"] + 1, abs=0.05)


def test_itop_of_runs_with_seeds_in_one_line(runs: Path, tmp_path: Path) -> None:
    (curve,) = _analyse("itop", tmp_path, str(runs))["result"]["curves"]
    assert len(curve["runs"]) == 2
    assert curve["epoch"] == [0, 1, 2]
    for rates in curve["itop"]:
        assert rates[0] == pytest.approx(0.2)
        assert rates == sorted(rates)
        assert rates[-1] > 0.2


def test_errors_are_one_line_with_the_remedy(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def complaint(*argv: str) -> str:
        assert main([*argv, "--out", str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "bn-ratio" in complaint("bn-ration")
    assert "dense" in complaint("skew", str(runs / "dense"))
    assert "config.json" in complaint("skew", str(tmp_path / "nowhere"))
    assert "sparseopt train" in complaint("itop", str(runs / "dense"))
    assert "--batch-size" in complaint("bn-ratio", "--batch-size", "100000")
    assert "--sparsities" in complaint("bn-ratio", "--sparsities", "1.0")
    assert "--mask" in complaint("bn-ratio", "--mask", "chessboard")
    assert "--hidden" in complaint("ln-ratio", "--hidden", "30")
    assert "--steps" in complaint("fan-in", "--steps", "-1")
    assert "--seeds" in complaint("one-neuron", "--seeds", "0")
    assert "--dimension" in complaint("balance", "--dimension", "2")


def test_help_lists_the_analyses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert all(name in capsys.readouterr().out for name in ("bn-ratio",))
    assert main(["balance", "--help"]) == 0
    assert "--extent" in capsys.readouterr().out


def test_share_interval_is_wilsons() -> None:
    # Newcombe 1998, table I: 81 of 263, 95%: 0.2553 to 0.3662.
    assert share_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert share_interval(0, 20)[0] == pytest.approx(0, abs=1e-12)
