import hashlib
import http.client
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from sparseopt.lab import data
from sparseopt.lab.data import cifar, fetch, mnist
from sparseopt.lab.data.fetch import OfficialArchive, OfficialFile
from sparseopt.lab.errors import UserError

REAL = os.environ.get("SPARSEOPT_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="set SPARSEOPT_DATA to a folder with the official files")


@pytest.fixture(autouse=True)
def isolated(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the user's own files, or the network."""
    if "real" not in request.node.name:
        monkeypatch.delenv("SPARSEOPT_DATA", raising=False)
        monkeypatch.setenv("SPARSEOPT_CACHE", str(tmp_path / "cache"))


def md5(contents: bytes) -> str:
    return hashlib.md5(contents).hexdigest()


def official(path: Path, contents: bytes) -> OfficialFile:
    """A file as if published at `path`."""
    path.write_bytes(contents)
    return OfficialFile(path.name, md5(contents), path.as_uri())


def packed(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:xz" if path.suffix == ".xz" else "w:gz") as tar:
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    return path


def test_digits_are_split_evenly_and_disjointly() -> None:
    digits = data.load("digits")
    assert digits.train_images.dtype == torch.uint8
    assert digits.train_labels.bincount().tolist() == [400] * 10
    assert digits.test_labels.bincount().tolist() == [100] * 10
    train = {image.numpy().tobytes() for image in digits.train_images}
    assert not any(image.numpy().tobytes() in train for image in digits.test_images)


def test_a_file_is_downloaded_verified_and_kept(tmp_path: Path) -> None:
    source, folder = tmp_path / "server", tmp_path / "data"
    source.mkdir()
    folder.mkdir()
    file = official(source / "numbers.bin", b"0123")
    assert fetch.read_file(file, folder) == b"0123"
    (source / "numbers.bin").unlink()
    assert fetch.read_file(file, folder) == b"0123"
    assert [path.name for path in folder.iterdir()] == ["numbers.bin"]


def test_a_wrong_download_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    file = official(tmp_path / "numbers.bin", b"0123")
    (tmp_path / "numbers.bin").write_bytes(b"0124")
    folder = tmp_path / "data"
    folder.mkdir()
    with pytest.raises(
        UserError, match=r"not the official numbers\.bin.*cut short or changed.*put the file into"
    ):
        fetch.read_file(file, folder)
    assert list(folder.iterdir()) == []


def test_a_connection_that_breaks_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = official(tmp_path / "numbers.bin", b"0123")

    def broken(*_: object, **__: object) -> None:
        raise http.client.IncompleteRead(b"01")

    (tmp_path / "data").mkdir()
    monkeypatch.setattr(fetch.urllib.request, "urlopen", broken)
    with pytest.raises(UserError, match="cannot be downloaded"):
        fetch.read_file(file, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_what_was_downloaded_can_be_read_by_whoever_may(tmp_path: Path) -> None:
    file = official(tmp_path / "numbers.bin", b"0123")
    (tmp_path / "data").mkdir()
    before = os.umask(0o022)
    try:
        fetch.read_file(file, tmp_path / "data")
    finally:
        os.umask(before)
    assert (tmp_path / "data" / "numbers.bin").stat().st_mode & 0o777 == 0o644


def test_offline_and_absent_says_which_file_to_put_where(tmp_path: Path) -> None:
    file = OfficialFile("numbers.bin", md5(b"0123"), (tmp_path / "gone" / "numbers.bin").as_uri())
    with pytest.raises(UserError, match=r"numbers\.bin .*file:.*numbers\.bin"):
        fetch.read_file(file, tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / mnist.TRAIN_IMAGES.name).write_bytes(b"not the real thing")
    with pytest.raises(UserError, match="md5"):
        data.load("mnist", tmp_path)


def test_a_data_dir_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--data-dir .*folder"):
        data.load("mnist", tmp_path / "nowhere")


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.xz"])
def test_an_archive_is_unpacked_in_any_packing_into_the_cache(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    path = packed(folder / f"set{suffix}", {"set/a": b"aa", "set/b": b"bb", "set/unwanted": b"!"})
    checksum = md5(path.read_bytes()) if suffix == ".tar.gz" else "0" * 32
    archive = OfficialArchive(
        OfficialFile("set.tar.gz", checksum, "file:///nowhere"), "set", {"a": md5(b"aa"), "b": md5(b"bb")}
    )
    assert fetch.read_members(archive, folder) == {"a": b"aa", "b": b"bb"}
    assert [entry.name for entry in folder.iterdir()] == [path.name]
    assert sorted(entry.name for entry in (tmp_path / "cache" / "set").iterdir()) == ["a", "b"]


def test_an_archive_with_a_wrong_checksum_or_member_is_refused(tmp_path: Path) -> None:
    published = OfficialFile("set.tar.gz", "0" * 32, "file:///nowhere")
    archive = OfficialArchive(published, "set", {"a": md5(b"aa")})
    path = packed(tmp_path / "set.tar.gz", {"set/a": b"aa"})
    with pytest.raises(UserError, match=r"set\.tar\.gz"):
        fetch.read_members(archive, tmp_path)
    path.unlink()
    packed(tmp_path / "set.tar.xz", {"set/a": b"something else"})
    with pytest.raises(UserError, match="not the official file"):
        fetch.read_members(archive, tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_torn_archive_is_one_line(tmp_path: Path) -> None:
    archive = OfficialArchive(OfficialFile("set.tar.gz", "0" * 32, "file:///nowhere"), "set", {"a": ""})
    path = packed(tmp_path / "set.tar.xz", {"set/a": bytes(1000)})
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match="cannot be unpacked"):
        fetch.read_members(archive, tmp_path)


def test_an_archive_that_points_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    archive = OfficialArchive(OfficialFile("set.tar.gz", "0" * 32, "file:///nowhere"), "set", {"a": ""})
    with tarfile.open(tmp_path / "set.tar.xz", "w:xz") as tar:
        link = tarfile.TarInfo("set/a")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(link)
    with pytest.raises(UserError, match="cannot be unpacked"):
        fetch.read_members(archive, tmp_path)


def test_cifar_pickles_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    contents = pickle.dumps(
        {"data": pixels, "fine_labels": [3, 99]}, protocol=3
    )  # bytes as they are, like python 2 wrote them
    contents = contents.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    monkeypatch.setattr(cifar, "read_members", lambda *_: {"train": contents, "test": contents})
    loaded = data.load("cifar100")
    assert loaded.train_images[1, 2, 0, 5] == (3072 + 2 * 1024 + 5) % 256
    assert loaded.train_labels.tolist() == [3, 99]


def test_a_pickle_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/owned",)

    with pytest.raises(pickle.UnpicklingError, match="refused to load"):
        cifar.ArrayUnpickler(io.BytesIO(pickle.dumps(Evil()))).load()
    assert not (tmp_path / "owned").exists()


def test_idx_files_are_parsed() -> None:
    contents = bytes([0, 0, 8, 2]) + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(range(6))
    assert mnist.parse_idx(contents).tolist() == [[0, 1, 2], [3, 4, 5]]


@needs_data
def test_real_mnist() -> None:
    loaded = data.load("mnist")
    assert loaded.train_images.shape == (60_000, 1, 28, 28)
    assert loaded.test_images.shape == (10_000, 1, 28, 28)
    assert loaded.train_labels[:5].tolist() == [5, 0, 4, 1, 9]


@needs_data
def test_real_cifar100() -> None:
    loaded = data.load("cifar100")
    assert loaded.train_images.shape == (50_000, 3, 32, 32)
    assert loaded.test_images.shape == (10_000, 3, 32, 32)
    assert loaded.train_labels.bincount().tolist() == [500] * 100
    pixels = loaded.train_images.double() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(list(loaded.mean), abs=1e-4)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(list(loaded.std), abs=1e-4)


@pytest.mark.parametrize("name", ["imagenet", "svhn"])
def test_only_data_sets_that_fit_are_loaded_whole(name: str) -> None:
    with pytest.raises(ValueError, match="data must be"):
        data.load(name)
