"""Compiles the kernels on first use and loads them: `operators()` is the one way to reach them.

The library is cached under a name made of everything that shapes it (sources, compiler, flags), so a change of any of
them builds anew and an old library is never loaded by mistake. A lock held by the operating system makes concurrent first uses
wait for one build, and is gone with the process that held it; the library appears under its name only when it is complete.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch

from sparseopt.kernels.native.operators import Operators
from sparseopt.kernels.native.spinner import spinner

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent.parent / "csrc"
TARGETS = {
    "avx512": ("-march=x86-64-v4",),
    "avx2": ("-march=x86-64-v3",),
    "portable": (),
}
# Memory errors and undefined behaviour end the process; for tests, with libasan loaded first.
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TARGETS |= {f"{name}-sanitized": (*flags, *SANITIZERS) for name, flags in TARGETS.items()}
CAPABILITIES = {"AVX512": "avx512", "AVX2": "avx2"}
FLAGS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-w")


class BuildError(RuntimeError):
    """The kernels cannot be had on this machine; the message says why."""


def target() -> str:
    """The instruction set to compile for: the CPU's, or what `SPARSEOPT_KERNELS` names."""
    forced = os.environ.get("SPARSEOPT_KERNELS")
    if forced is None:
        return CAPABILITIES.get(torch.backends.cpu.get_cpu_capability(), "portable")
    if forced not in TARGETS:
        raise BuildError(f"SPARSEOPT_KERNELS must be one of {', '.join(TARGETS)}, got {forced!r}")
    return forced


@functools.cache
def operators() -> Operators:
    """The kernels for this machine; built first if need be. Raises `BuildError`."""
    return Operators(ctypes.CDLL(str(library(target()))))


def library(name: str) -> Path:
    """The compiled library for one target, from the cache or made now."""
    if platform.system() != "Linux":
        raise BuildError(f"the kernels are built on Linux only, this is {platform.system()}")
    compiler = find_compiler()
    command = [compiler, *FLAGS, *TARGETS[name]]
    path = cache_folder() / f"sparseopt-{name}-{fingerprint(command)}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                compile_library(command, path)
    return path


def find_compiler() -> str:
    wanted = os.environ.get("CXX")
    for candidate in (wanted,) if wanted else ("g++", "clang++"):
        if found := shutil.which(candidate):
            return found
    raise BuildError(
        f"no C++ compiler: {wanted or 'neither g++ nor clang++'} not found; install one or set CXX"
    )


def cache_folder() -> Path:
    base = os.environ.get("SPARSEOPT_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sparseopt"


def fingerprint(command: list[str]) -> str:
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256("\0".join([*command, version]).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


class locked:
    """Hold an exclusive lock on a file. The system releases it when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        import fcntl

        self.file = self.path.open("w")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self.file.close()


def compile_library(command: list[str], path: Path) -> None:
    arguments = ["-shared", str(SOURCES / "library.cpp")]
    logger.info("compiling the sparse CPU kernels with %s: once, half a minute at most", command[0])
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        finished = Path(folder) / path.name
        with spinner("compiling the sparse CPU kernels"):
            run = subprocess.run(
                [*command, *arguments, "-o", str(finished)], capture_output=True, text=True, check=False
            )
        if run.returncode:
            raise BuildError(f"{command[0]} failed on the kernels:\n{run.stderr.strip()[-2000:]}")
        finished.replace(path)
    logger.info("compiled the kernels in %.0f s: %s", time.perf_counter() - start, path)
