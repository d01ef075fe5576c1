"""From a level's name to its kernels: `operators()` is the one way to reach them.

A wheel brings the libraries, built from the sources beside them. Where there is none (a checkout, another kind of machine) a
library is compiled on first use and cached under a name made of everything that shapes it (sources, compiler, flags), so a change
of any of them builds anew and an old library is never loaded by mistake. A lock makes concurrent first uses wait for one build.
"""

import ctypes
import functools
import logging
import platform
import tempfile
import time
from pathlib import Path

from sparseopt.kernels.native import levels
from sparseopt.kernels.native.cache import Folder, folders, say
from sparseopt.kernels.native.compiler import (
    BuildError,
    compile_library,
    find_compiler,
    fingerprint,
    identity,
)
from sparseopt.kernels.native.operators import Operators
from sparseopt.kernels.native.spinner import spinner

__all__ = ["BuildError", "operators"]

logger = logging.getLogger(__name__)

BUILT = Path(__file__).parent / "built"  # in a wheel


@functools.cache
def operators(level: str | None = None) -> Operators:
    """The kernels for this machine, or those of another level it can execute; compiled first if need be.

    Raises `BuildError` where they cannot be had, and `ValueError` for a level that cannot be executed.
    """
    if level is None:
        return _operators(levels.chosen())
    levels.check(level, "level")
    return _operators(level)


@functools.cache
def _operators(level: str) -> Operators:
    try:
        return Operators(ctypes.CDLL(locate(level)))
    except OSError as reason:
        raise BuildError(f"the compiled kernels cannot be loaded: {reason}") from reason


def locate(level: str) -> str:
    """Where the system's loader finds the library of a level."""
    if platform.system() != "Linux":
        raise BuildError(f"the kernels are built on Linux only, this is {platform.system()}")
    brought = BUILT / library_name(level, fingerprint())
    if brought.is_file():
        return str(brought)
    # The descriptor stays open: the loader takes a second library of the same name for the first one.
    return f"/proc/self/fd/{library(level)}"


def library_name(level: str, made_of: str) -> str:
    return f"sparseopt-{level}-{made_of}.so"


def library(level: str) -> int:
    """The descriptor of a library that was compiled before, or now."""
    command = find_compiler()
    name = library_name(level, identity(command, level))
    reasons: list[str] = []
    for folder in folders():
        try:
            if (found := folder.open(name)) is not None:
                return found
            with folder.locked(name.replace(".so", ".lock")):
                return _in_folder(folder, command, level, name)
        except OSError as reason:
            reasons.append(f"{folder.path}: {reason.strerror or reason}")
            say(f"{folder.path}: {reason.strerror or reason}")
        finally:
            folder.close()
    raise BuildError(f"there is no folder for the compiled kernels; {'; '.join(reasons)}")


def _in_folder(folder: Folder, command: list[str], level: str, name: str) -> int:
    found = folder.open(name)  # another process may have built it meanwhile
    if found is not None:
        return found
    folder.write(name, _compiled(tuple(command), level))
    found = folder.open(name)
    if found is None:
        raise OSError("what was written cannot be read again")
    return found


@functools.lru_cache(maxsize=1)  # a folder may turn out to be full
def _compiled(command: tuple[str, ...], level: str) -> bytes:
    logger.info("compiling the sparse CPU kernels with %s: once, half a minute at most", command[0])
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="sparseopt-") as folder,
        spinner("compiling the sparse CPU kernels"),
    ):
        path = Path(folder) / "library.so"
        compile_library(list(command), level, path)
        content = path.read_bytes()
    logger.info("compiled the kernels in %.0f s", time.perf_counter() - start)
    return content
