"""The cache of compiled libraries, and why no other user can put one there.

A library runs as the user who loads it. So it is loaded only if it and its folder belong to that user, or to root, and nobody
else can write to them; what was opened and checked is what is loaded, by its file descriptor, so that nothing can take its place
in between. Where the cache cannot be trusted or written to, a private temporary folder takes its place.

A file ends with the digest of what stands before it (a library may have anything behind its last section): one that is cut short
is not loaded but made again. Files appear under their names only when they are complete and on the disk.
"""

import atexit
import contextlib
import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

DIGEST = hashlib.sha256().digest_size


def cache_root() -> Path:
    """The one folder for everything that can be had again: `$SPARSEOPT_CACHE`, else `sparseopt` in the user's cache folder."""
    if chosen := os.environ.get("SPARSEOPT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparseopt"


class Untrusted(OSError):
    """Another user could have written this."""


class Folder:
    """A folder of libraries, opened and found to be private. Raises `OSError` where it cannot be had."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with contextlib.suppress(OSError):  # whether it can be used is seen below
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
        self._at = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _check_private(self._at, path)
        except OSError:
            self.close()
            raise

    def open(self, name: str) -> int | None:
        """The descriptor of a complete library, or None."""
        try:
            found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._at)
        except OSError:
            return None
        try:
            _check_private(found, self.path / name)
            if complete(found):
                return found
        except OSError as reason:
            logger.warning("%s", reason)
        os.close(found)
        return None

    def write(self, name: str, content: bytes) -> None:
        """All of it or nothing."""
        partial = f".{name}.{os.getpid()}"
        mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=self._at)
        try:
            with open(os.open(partial, mode, 0o600, dir_fd=self._at), "wb") as file:
                file.write(content + hashlib.sha256(content).digest())
                file.flush()
                os.fsync(file.fileno())
            os.rename(partial, name, src_dir_fd=self._at, dst_dir_fd=self._at)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=self._at)
            raise

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """One process at a time. The system releases the lock when the process ends, however it ends."""
        import fcntl

        mode = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(name, mode, 0o600, dir_fd=self._at)
        try:
            with contextlib.suppress(
                OSError
            ):  # some network file systems cannot; two builds then do the same work
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def close(self) -> None:
        os.close(self._at)


def _check_private(descriptor: int, path: Path) -> None:
    found = os.fstat(descriptor)
    if found.st_uid not in (0, os.geteuid()):
        raise Untrusted(f"{path} belongs to another user (uid {found.st_uid}): what is in it is not loaded")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Untrusted(
            f"{path} can be written to by others (mode {stat.S_IMODE(found.st_mode):o}): what is in it is not loaded"
        )
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise Untrusted(f"{path} is neither a file nor a folder")


def complete(descriptor: int) -> bool:
    """Whether the digest at the end is that of the rest."""
    with open(descriptor, "rb", closefd=False) as file:
        content = file.read()
        file.seek(0)
    return len(content) > DIGEST and hashlib.sha256(content[:-DIGEST]).digest() == content[-DIGEST:]


def folders() -> Iterator[Folder]:
    """Where a library may be, best first: the cache, the user's own temporary folder, one made for this process alone.

    One line says why the cache is not used.
    """
    for place in (_cache, _temporary, _of_this_process):
        try:
            path = place()
            yield Folder(path)
        except (OSError, RuntimeError) as reason:  # RuntimeError: there is no home
            say(str(reason))


def _cache() -> Path:
    return cache_root().absolute() / "kernels"


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"sparseopt-kernels-{os.geteuid()}"


@cache
def _of_this_process() -> Path:
    path = Path(tempfile.mkdtemp(prefix="sparseopt-kernels-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def say(reason: str) -> None:
    """Why a folder is not used, once a process."""
    logger.warning("compiled kernels are kept in a private temporary folder, not in the cache: %s", reason)
