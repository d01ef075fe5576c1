"""The cache of compiled libraries: nobody else's are loaded, none is loaded in part, and one is had where none can be kept."""

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sparseopt.kernels.native import build, cache, compiler, levels

LEVEL = "portable"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the libraries. The compiler takes no time and writes "mine"."""
    script = tmp_path / "c++"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\nwhile [ "$1" != -o ]; do shift; done\nprintf mine > "$2"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    use(tmp_path / "cache", monkeypatch)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    cache._of_this_process.cache_clear()
    cache.say.cache_clear()
    build._compiled.cache_clear()
    return tmp_path / "cache" / "kernels"


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEOPT_CACHE", str(folder))


def library() -> tuple[str, Path]:
    """What the library consists of, without its digest, and where it is."""
    descriptor = build.library(LEVEL)
    place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    with open(descriptor, "rb") as file:
        return file.read()[: -cache.DIGEST].decode(), place


def name() -> str:
    return build.library_name(LEVEL, compiler.identity(compiler.find_compiler(), LEVEL))


def plant(folder: Path) -> Path:
    """A library of somebody else, complete with its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    at = cache.Folder(folder)
    at.write(name(), b"planted")
    at.close()
    return folder / name()


def test_what_is_cached_is_private_and_found_again(home: Path) -> None:
    assert library() == ("mine", home / name())
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / name()).stat().st_mode & 0o777 == 0o600
    plant(home)  # nobody compiles it again: this is found
    assert library()[0] == "planted"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_used(
    mode: int, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(home)
    home.chmod(mode)
    with caplog.at_level(logging.WARNING):
        content, place = library()
    assert content == "mine"
    assert place.parent.parent == Path(tempfile.gettempdir())
    assert place.parent.stat().st_mode & 0o777 == 0o700
    assert [str(home) in each for each in caplog.messages] == [True]
    assert library()[1] == place  # from now on it is found there


def test_a_file_that_others_can_write_to_is_not_loaded(home: Path) -> None:
    plant(home).chmod(0o666)
    assert library()[0] == "mine"


@pytest.mark.parametrize("whose", ["folder", "file"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_somebody_else_is_not_loaded(whose: str, home: Path) -> None:
    planted = plant(home)
    os.chown(home if whose == "folder" else planted, 12345, 12345)
    assert library()[0] == "mine"


def test_a_link_is_not_followed(home: Path, tmp_path: Path) -> None:
    planted = plant(tmp_path / "elsewhere")
    home.mkdir(parents=True, mode=0o700)
    (home / planted.name).symlink_to(planted)
    assert library()[0] == "mine"


def test_a_folder_that_is_a_link_is_not_followed(home: Path, tmp_path: Path) -> None:
    plant(tmp_path / "elsewhere")
    home.parent.mkdir()
    home.symlink_to(tmp_path / "elsewhere")
    assert library()[0] == "mine"


def test_a_lock_is_not_taken_through_a_link(home: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    home.mkdir(parents=True, mode=0o700)
    (home / name().replace(".so", ".lock")).symlink_to(victim)
    assert library()[0] == "mine"
    assert not victim.exists()


@pytest.mark.parametrize("left", [0, 1, 40])
def test_a_library_that_was_cut_short_is_made_again(left: int, home: Path) -> None:
    path = plant(home)
    path.write_bytes((path.read_bytes() * 2)[:left])
    assert library() == ("mine", path)
    assert library() == ("mine", path)


def test_a_changed_library_is_made_again(home: Path) -> None:
    path = plant(home)
    path.write_bytes(b"X" + path.read_bytes()[1:])
    assert library()[0] == "mine"


def blocked(tmp_path: Path) -> list[Path]:
    """Folders nobody can make or write to, root included."""
    file = tmp_path / "file"
    file.write_text("")
    return [Path("/proc/nope"), file, file / "below"]


@pytest.mark.parametrize("which", range(3))
def test_without_a_cache_the_temporary_folder_serves(
    which: int,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use(blocked(tmp_path)[which], monkeypatch)
    with caplog.at_level(logging.WARNING):
        content, place = library()
    assert content == "mine"
    assert place.parent.parent == Path(tempfile.gettempdir())
    assert len(caplog.messages) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_is_read(home: Path) -> None:
    plant(home)
    home.chmod(0o500)
    assert library()[0] == "planted"


def test_a_disk_that_is_full(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = cache.Folder.write

    def full(self: cache.Folder, name: str, content: bytes) -> None:
        if self.path == home:
            raise OSError(28, "No space left on device")
        write(self, name, content)

    monkeypatch.setattr(cache.Folder, "write", full)
    content, place = library()
    assert content == "mine"
    assert place.parent.parent == Path(tempfile.gettempdir())


def test_without_a_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SPARSEOPT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert library()[0] == "mine"


def test_somebody_else_s_temporary_folder_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Path("/proc/nope"), monkeypatch)
    theirs = Path(tempfile.gettempdir()) / f"sparseopt-kernels-{os.geteuid()}"
    plant(theirs)
    theirs.chmod(0o777)
    content, place = library()
    assert content == "mine"
    assert place.parent != theirs


def test_nowhere_at_all_is_a_build_error(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Path("/proc/nope"), monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(blocked(tmp_path)[2]))
    with pytest.raises(build.BuildError, match="no folder"):
        library()


@pytest.mark.slow
def test_a_model_is_accelerated_where_home_cannot_be_written_to(tmp_path: Path) -> None:
    built, quick = tmp_path / "built", tmp_path / "c++"  # a compiler that has compiled already
    with open(build.library(levels.chosen()), "rb") as library:
        built.write_bytes(library.read())
    quick.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exit 0\nwhile [ "$1" != -o ]; do shift; done\ncp {built} "$2"\n'
    )
    quick.chmod(0o755)
    code = """
import torch, sparseopt as so
model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300))
so.accelerate(model, so.sparsify(model, 0.9))
assert "forward" in model.__dict__
model(torch.zeros(2, 300))
"""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("XDG", "SPARSEOPT"))
    }
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "HOME": "/proc/nope", "TMPDIR": str(tmp_path), "CXX": str(quick)},
    )
    assert run.returncode == 0, run.stderr
