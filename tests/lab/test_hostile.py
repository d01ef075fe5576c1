"""Disks, folders and files that are against us: what is lost is told in one line, and nothing else is lost."""

import contextlib
import copy
import errno
import hashlib
import io
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sparseopt.__main__ import main
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import DiskFull, UserError
from sparseopt.lab.report import write_report
from sparseopt.lab.runs.catalogue import survey
from sparseopt.lab.runs.checkpoint import MAGIC, decode, encode
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.system.files import NO_ROOM, reporting_write_errors
from sparseopt.lab.training.train import train
from sparseopt.lab.training.trainer import Observer, Trainer

Small = Callable[..., Config]


class At(Observer):
    """Does something after a given step."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step, self.action = step, action

    def stepped(self, trainer: Trainer) -> None:
        if trainer.step == self.step:
            self.action()


@pytest.fixture(scope="module")
def run(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of two epochs; tests copy it."""
    path = tmp_path_factory.mktemp("complete") / "run"
    train(small(epochs=2), path)
    return path


@pytest.mark.parametrize("code", NO_ROOM)
def test_no_room_is_told_from_other_reasons(code: int, tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="cannot write"), reporting_write_errors(tmp_path):
        raise OSError(code, os.strerror(code))


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 1000.0])
@pytest.mark.parametrize(
    "act", [shutil.rmtree, lambda out: out.rename(out.with_name("elsewhere"))], ids=["gone", "moved"]
)
def test_a_folder_that_goes_away_under_a_run(
    *, act: Callable[[Path], object], checkpoint_seconds: float, small: Small, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError, match=f"cannot write {out}"):
        train(small(), out, checkpoint_seconds=checkpoint_seconds, observers=[At(3, lambda: act(out))])


def test_a_checkpoint_that_cannot_be_read_is_passed_over(
    *,
    run: Path,
    small: Small,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = shutil.copytree(run, tmp_path / "run")
    whole = RunDir(out).metrics()
    (out / "summary.json").unlink()
    newest = RunDir(out).checkpoints.newest_first()[0]
    read = Path.read_bytes

    def without_permission(path: Path) -> bytes:
        if path == newest:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", without_permission)
    train(small(epochs=2), out)
    assert newest.name in caplog.text
    assert "cannot be read" in caplog.text
    again = RunDir(out).metrics()
    assert [row["test_loss"] for row in again] == [row["test_loss"] for row in whole]


def test_another_configuration_does_not_go_on_where_config_json_is_gone(
    run: Path, small: Small, tmp_path: Path
) -> None:
    out = shutil.copytree(run, tmp_path / "run")
    (out / "config.json").unlink()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"another run .*lr.*--out"):
        train(small(epochs=2, lr=0.2), out)
    after = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert {path.name for path in before if before[path] != after.get(path)} <= {"lock"}
    assert not (out / "config.json").exists()
    train(small(epochs=2), out)  # its own configuration may


def test_checkpoints_without_any_configuration_are_refused(run: Path, small: Small, tmp_path: Path) -> None:
    out = shutil.copytree(run, tmp_path / "run")
    (out / "config.json").unlink()
    for path in RunDir(out).checkpoints.newest_first():
        state = decode(path.read_bytes(), torch.device("cpu"))
        del state["config"]
        path.write_bytes(encode(state))
    with pytest.raises(UserError, match=r"no config\.json"):
        train(small(epochs=2), out)


def test_the_checkpoint_of_another_network_is_refused(run: Path, small: Small, tmp_path: Path) -> None:
    out = shutil.copytree(run, tmp_path / "run")
    (out / "summary.json").unlink()
    for path in RunDir(out).checkpoints.newest_first():
        state = decode(path.read_bytes(), torch.device("cpu"))
        state["model"].popitem()
        path.write_bytes(encode(state))
    with pytest.raises(UserError, match="this network"):
        train(small(epochs=2), out)


def test_forged_checkpoints_are_read_or_refused() -> None:
    whole = io.BytesIO()
    torch.save({"step": 1, "weights": torch.arange(50.0), "rows": [{"epoch": 1}]}, whole)
    for seed in range(100):
        chance, payload = random.Random(seed), bytearray(whole.getvalue())
        for _ in range(chance.choice([1, 4, 16])):
            payload[chance.randrange(len(payload))] = chance.randrange(256)
        del payload[chance.choice([len(payload), chance.randrange(len(payload))]) :]
        forged = MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + bytes(payload)
        with contextlib.suppress(ValueError):
            assert isinstance(decode(forged, torch.device("cpu")), dict)


HOSTILE: list[Any] = [
    *(None, "", -1, 0, 1e308, float("nan"), float("inf"), 10**400, 2**63, True, -0.5),
    *([], {}, [[]], [1, "a"], {"a": {"b": [1]}}, "\x1b[31m", "\udc80", "x" * 5000, "<script>"),
]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside a JSON value."""
    yield place
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, entry in entries:
        yield from places(entry, (*place, key))


def swapped(value: Any, chance: random.Random) -> Any:
    """A JSON value with something hostile somewhere in it."""
    place, hostile = chance.choice(list(places(value))), chance.choice(HOSTILE)
    if not place:
        return hostile
    changed = inner = copy.deepcopy(value)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = hostile
    return changed


def damage(folder: Path, chance: random.Random) -> None:
    """Damage one file of a run, in a way that may still look like one."""
    files = [path for path in folder.rglob("*") if path.is_file() and "tensorboard" not in path.parts]
    records = [folder / "config.json", folder / "metrics.jsonl"]
    path = chance.choice([*files, *records * 4, folder / "diverged.json", folder / "sparse.safetensors"])
    if not path.exists():
        path.write_text("{}")
    contents = bytearray(path.read_bytes())
    kind = chance.randrange(14)
    if kind < 6 and path.suffix in (".json", ".jsonl"):
        lines = (
            [json.loads(line) for line in contents.splitlines()]
            if path.suffix == ".jsonl"
            else [json.loads(contents)]
        )
        number = chance.randrange(len(lines))
        lines[number] = swapped(lines[number], chance)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif kind < 8:
        path.write_bytes(contents[: chance.randrange(len(contents) + 1)])
    elif kind < 10:
        for _ in range(min(len(contents), 20)):
            contents[chance.randrange(len(contents))] = chance.randrange(256)
        path.write_bytes(contents)
    elif kind == 10:
        path.write_text("[" * 100_000 + "]" * 100_000 + "\n")
    else:
        path.unlink()
        if kind == 11:
            path.mkdir()
        elif kind == 12:
            path.symlink_to(path.name)


def another(run: Path, folder: Path, seconds: float) -> Path:
    """A run of the same settings that is no mere copy, by its time of training."""
    shutil.copytree(run, folder)
    RunDir(folder).write_metrics([row | {"seconds": seconds} for row in RunDir(folder).metrics()])
    return folder


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_damaged_folders_do_not_stop_the_report(
    seed: int, run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance, runs = random.Random(seed), tmp_path / "runs"
    shutil.copytree(run, runs / "good")
    for number in range(50):
        damage(another(run, runs / f"damaged{number}", 100.0 + number), chance)
    found = survey(runs)
    assert any(each.path.name == "good" for each in found.runs)
    assert len(found.runs) + len(found.left_out) <= 51
    write_report(found.runs, tmp_path / "page.html", title="x", left_out=found.left_out)
    page = (tmp_path / "page.html").read_text()
    assert "good" in page
    assert all(record.levelno < logging.ERROR for record in caplog.records)
    assert main(["runs", str(runs)]) == 0


def test_names_that_command_a_terminal_or_are_no_text(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "a\x1b[31mred[/]\x07")
    another(run, Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xff")), 100.0)
    (shutil.copytree(run, tmp_path / "c\x1b[2J") / "config.json").write_text("{}")
    assert main(["runs", str(tmp_path)]) == 0
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert r"a\x1b[31mred[/]" in said.out


@pytest.mark.parametrize(
    "argv",
    [
        *(pytest.param(["plot"], marks=pytest.mark.slow), ["export"]),
        *(pytest.param(["export", "--format", "onnx"], marks=pytest.mark.slow), ["report"]),
    ],
    ids=" ".join,
)
def test_files_go_into_new_folders_and_not_into_what_cannot_be_written(
    argv: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = argv
    name = {"plot": "curves.png", "export": "model", "report": "page.html"}[command]
    assert main([command, str(run), *options, "--out", str(tmp_path / "new" / "folder" / name)]) == 0
    assert (tmp_path / "new" / "folder" / name).exists()
    (tmp_path / "file").touch()
    capsys.readouterr()
    assert main([command, str(run), *options, "--out", str(tmp_path / "file" / name)]) == 2
    assert f"cannot write {tmp_path / 'file'}" in capsys.readouterr().err


def test_analyse_refuses_a_folder_that_cannot_be_written_before_it_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["analyse", "bn-ratio", "--out", str(tmp_path / "file" / "below")]) == 2
    assert f"cannot write {tmp_path / 'file'}" in capsys.readouterr().err


def test_exported_files_have_the_mode_of_the_others(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "packed")]) == 0
    assert stat.S_IMODE((tmp_path / "packed").stat().st_mode) == stat.S_IMODE(
        (run / "config.json").stat().st_mode
    )


def killed_at(operation: int, config: Config, out: Path) -> None:
    """Train, and be gone at the file operation of that number."""
    left = [operation]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename", "os.remove", "os.mkdir") and str(out) in str(arguments[0]):
            left[0] -= 1
            if left[0] < 0:
                os._exit(signal.SIGKILL)

    sys.addaudithook(hook)
    torch.set_num_threads(1)
    train(config, out, checkpoint_seconds=0)


@pytest.mark.slow
def test_killed_at_file_operations_it_ends_with_the_same_bits(
    small: Small, outcome: Callable[[Path], Any], tmp_path: Path
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sparseopt.lab.training.train", "torch.utils.tensorboard.writer"])
    config, out = small(epochs=1), tmp_path / "run"
    train(config, tmp_path / "whole")
    for operation in (3, 11, 24, 10**9):
        worker = context.Process(target=killed_at, args=(operation, config, out))
        worker.start()
        worker.join()
        assert worker.exitcode == (signal.SIGKILL if operation < 100 else 0)
    assert outcome(out) == outcome(tmp_path / "whole")


@pytest.mark.parametrize(
    ("module", "argv"),
    [("torch", ["--version"]), pytest.param("tyro", ["runs"], marks=pytest.mark.slow)],
)
def test_ctrl_c_while_the_command_loads(module: str, argv: list[str], tmp_path: Path) -> None:
    slow, begun = tmp_path / "modules" / module, tmp_path / "begun"
    slow.mkdir(parents=True)
    (slow / "__init__.py").write_text(f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(600)\n")
    command = subprocess.Popen(
        [sys.executable, "-m", "sparseopt", *argv],
        env=os.environ | {"PYTHONPATH": str(slow.parent)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not begun.exists() and command.poll() is None:
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    _, said = command.communicate()
    assert command.returncode in (-signal.SIGINT, 130)
    assert "Traceback" not in said
