import errno
import hashlib
import io
import logging
import os
import zipfile
from pathlib import Path

import pytest
import torch

from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.checkpoint import MAGIC, Checkpoints, decode, encode
from sparseopt.lab.system import files

CPU = torch.device("cpu")


def state(step: int) -> dict[str, object]:
    return {"step": step, "weights": torch.full((50,), float(step)), "rows": [{"epoch": 1, "loss": 0.5}]}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    made = Checkpoints(tmp_path / "checkpoints")
    for step in (1, 2, 3):
        made.save(step, state(step))
    return made


def test_the_newest_is_loaded_and_two_are_kept(checkpoints: Checkpoints) -> None:
    loaded = checkpoints.load(CPU)
    assert loaded is not None
    assert loaded["step"] == 3
    assert torch.equal(loaded["weights"], torch.full((50,), 3.0))
    assert [path.name for path in checkpoints.newest_first()] == [
        "step-0000000003.ckpt",
        "step-0000000002.ckpt",
    ]


def test_nothing_is_loaded_from_nothing(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none").load(CPU) is None


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "foreign"])
def test_a_damaged_one_is_reported_and_the_one_before_it_used(
    checkpoints: Checkpoints, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    newest = checkpoints.newest_first()[0]
    contents = bytearray(newest.read_bytes())
    if damage == "flipped":
        contents[len(contents) // 2] ^= 1
    newest.write_bytes(
        {"torn": contents[:-20], "flipped": contents, "empty": b"", "foreign": b"x\ny"}[damage]
    )
    with caplog.at_level(logging.WARNING):
        loaded = checkpoints.load(CPU)
    assert loaded is not None
    assert loaded["step"] == 2
    assert newest.name in caplog.text
    assert "damaged" in caplog.text


def test_going_back_from_a_damaged_one_makes_room_for_good_ones(checkpoints: Checkpoints) -> None:
    checkpoints.save(9, state(9))
    damaged = checkpoints.newest_first()[0]
    damaged.write_bytes(b"damaged")
    checkpoints.save(4, state(4))
    assert [path.name for path in checkpoints.newest_first()] == [
        "step-0000000004.ckpt",
        "step-0000000003.ckpt",
    ]


def test_every_flipped_byte_is_noticed() -> None:
    contents = encode({"x": 1})
    for position in range(0, len(contents), 37):
        damaged = bytearray(contents)
        damaged[position] ^= 0x10
        with pytest.raises(ValueError, match=r"checksum|no checkpoint"):
            decode(bytes(damaged), CPU)


def test_a_checkpoint_with_a_right_checksum_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/owned",)

    buffer = io.BytesIO()
    torch.save({"x": Evil()}, buffer)
    payload = buffer.getvalue()
    assert zipfile.is_zipfile(io.BytesIO(payload))
    forged = MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload
    with pytest.raises(ValueError, match="cannot be read"):
        decode(forged, CPU)
    assert not (tmp_path / "owned").exists()


def test_leftovers_of_a_killed_writer_are_removed(checkpoints: Checkpoints) -> None:
    leftover = checkpoints.folder / f".step-0000000004.ckpt{files.TEMPORARY}"
    leftover.write_bytes(b"half of it")
    checkpoints.remove_leftovers()
    assert not leftover.exists()
    assert len(checkpoints.newest_first()) == 2


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    files.write_json(path, {"a": 1})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"file\.json.*No space left on device.*same command"):
        files.write_json(path, {"a": 2})
    assert files.read_json(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def test_where_none_can_be_read_nothing_is_begun_anew(checkpoints: Checkpoints) -> None:
    for path in checkpoints.newest_first():
        path.write_bytes(b"sparseopt-checkpoint-0 of another version\n")
    with pytest.raises(UserError, match=r"step-0000000002\.ckpt.*move them away"):
        checkpoints.load(CPU)
    assert len(checkpoints.newest_first()) == 2
