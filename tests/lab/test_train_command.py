import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sparseopt.lab.commands.train import main

Outcome = Callable[[Path], tuple[bytes, list[dict[str, Any]]]]

SMALL = ["digits-mlp", "--epochs", "2", "--batch-size", "400", "--hidden", "16", "--every", "4"]


@pytest.fixture(autouse=True)
def settings_restored() -> Iterator[None]:
    """The command settles the settings of its process, which here is ours."""
    yield
    torch.use_deterministic_algorithms(False)


def test_it_trains_reports_and_leaves_a_complete_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, "--sparsity", "0.9", "--method", "set"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("digits-mlp-set-0.9-auto-seed0")
    for name in (
        "config.json",
        "metrics.jsonl",
        "summary.json",
        "model.safetensors",
        "checkpoints",
        "tensorboard",
    ):
        assert (run / name).exists(), name
    text = capsys.readouterr().out
    assert "epoch 1 " in text
    assert "epoch 2 " in text
    accuracy = json.loads((run / "summary.json").read_text())["test_accuracy"]
    assert f"test accuracy {accuracy:.2%}" in text
    assert main([*SMALL, "--sparsity", "0.9", "--method", "set"]) == 0
    told = capsys.readouterr().out
    assert "was complete already: " in told
    assert "(90.0% zeros in sparse layers)" in told
    assert main([*SMALL, "--sparsity", "0.9", "--method", "set", "--accelerate", "on"]) == 0
    assert "was complete already, trained with --accelerate off: " in capsys.readouterr().out


def test_the_rate_of_another_optimizer_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    command = [*SMALL, "--epochs", "1", "--optimizer", "adamw"]
    assert main([*command, "--lr", "0.001", "--out", str(tmp_path / "own")]) == 0
    assert "trains at" not in caplog.text
    assert main([*command, "--out", str(tmp_path / "recipe's")]) == 0
    assert "--optimizer adamw trains at --lr 0.1, the defaults' for sgd" in caplog.text


def test_packed_weights_by_either_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    command = [*SMALL, "--sparsity", "0.9", "--method", "rigl", "--out", str(run)]
    assert main([*command, "--storage", "packed"]) == 0
    assert json.loads((run / "config.json").read_text())["storage"] == "packed"
    (run / "summary.json").unlink()
    capsys.readouterr()
    assert main([*command, "--weight-storage", "dense"]) != 0
    assert "holds a run with packed storage" in capsys.readouterr().err


def test_a_run_is_repeated_from_its_record(tmp_path: Path, outcome: Outcome) -> None:
    assert main([*SMALL, "--seed", "3", "--out", str(tmp_path / "first")]) == 0
    assert main(["--config", str(tmp_path / "first" / "config.json"), "--out", str(tmp_path / "again")]) == 0
    assert outcome(tmp_path / "first") == outcome(tmp_path / "again")
    changed = [f"--config={tmp_path}/first/config.json", "--seed", "4", "--out", str(tmp_path / "other")]
    assert main(changed) == 0
    assert outcome(tmp_path / "first") != outcome(tmp_path / "other")
    record = json.loads((tmp_path / "other" / "config.json").read_text())["config"]
    assert (record["seed"], record["hidden"]) == (4, [16])


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (
            ["digit-mlp"],
            "unknown recipe 'digit-mlp' (did you mean digits-mlp?); the recipes are digits-mlp, mnist-mlp",
        ),
        (
            ["--sparsity", "95"],
            "--sparsity must be at least 0 and less than 1, got 95.0; for 95%, write 0.95",
        ),
        (["--sparsity", "1"], "--sparsity must be at least 0 and less than 1, got 1.0"),
        (
            ["--fan-in", "bimodal"],
            "--fan-in must be random, constant or bimodal:R with R at least 1, got bimodal",
        ),
        (["--device", "abacus"], "--device abacus cannot be used here"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--config", "nothing.json"], "cannot read nothing.json"),
        (["digits-mlp", "--config", "x.json"], "give one of them"),
        (["--config", "."], "name the config.json of a run"),
        (["--out", "mnist-mlp", "--sparsity", "1"], "--sparsity must be"),
        (["mnist-mlp", "--data-dir", "nowhere"], "--data-dir nowhere is not a folder"),
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
    assert error.startswith("sparseopt train: ")
    assert error.count("\n") == 1
    assert complaint in error


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--method", "magic"], "dense"),
        (["--config"], "--config"),
        (["--sparsiti", "0.9"], "--sparsity"),
        (["--seed", "1", "mnist-mlp"], "the recipe goes before the options: sparseopt train mnist-mlp ..."),
    ],
)
def test_what_cannot_be_parsed_is_exit_code_2(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert complaint in capsys.readouterr().err


def test_divergence_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--lr", "1e25", "--method", "dense", "--out", str(tmp_path / "run")]) == 3
    assert "at step" in capsys.readouterr().err


def test_help_lists_the_recipes_and_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cifar100-resnet20", "--help"]) == 0
    text = capsys.readouterr().out
    for option in (
        *(
            "--method {dense,static,set,rigl,gse,",
            "--sparsity",
            "--distribution",
            "--fan-in",
            "--grow-from",
            "--ham",
        ),
        *(
            "--max-grad-norm",
            "--clip {active,paper}",
            "--epochs",
            "--seed",
            "--width",
            "--device",
            "--data-dir",
        ),
        *(
            "--correction {auto,layer,global,",
            "--exclude",
            "--include",
            "--correct-decay",
            "--drop-decay",
            "--out",
            "--config",
            "--debug",
        ),
        *("imagenet-resnet50", "(default: 256)"),
    ):
        assert option in text, option


@pytest.mark.slow
def test_ctrl_c_ends_the_command_with_130_and_the_way_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sparseopt", "train", *SMALL, "--epochs", "200", "--threads", "1"]
    command += ["--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not (tmp_path / "run" / "checkpoints").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130
    assert "same command" in error.splitlines()[-1]
    assert "Traceback" not in error


def test_a_folder_with_brackets_is_named_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [*SMALL, "--tracker", "--warmup-epochs", "0"]
    assert main([*options, "--out", "a[/b]"]) == 0
    assert "-> a[/b]" in capsys.readouterr().out


def test_a_closed_pipe_does_not_end_the_training(tmp_path: Path) -> None:
    options = [*SMALL, "--tracker", "--warmup-epochs", "0"]
    command = [sys.executable, "-m", "sparseopt", "train", *options, "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait()
    assert process.returncode == 0
    assert (tmp_path / "run" / "summary.json").exists()
