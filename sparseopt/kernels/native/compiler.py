"""Compiling the kernels: the compiler, its flags, and what it says when it fails.

Nothing but the standard library is imported here, for the wheel's build, which has no torch, uses this file as well.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "csrc"
FLAGS = (
    *("-std=c++20", "-O3", "-ffp-contract=fast", "-w"),
    *("-shared", "-fPIC", "-fvisibility=hidden"),  # hidden: several levels in one process share nothing
)
# What each level is compiled with beyond what every CPU of its kind has.
X86_LEVELS = {"avx512": ("-march=x86-64-v4",), "avx2": ("-march=x86-64-v3",), "portable": ()}
OTHER_LEVELS = {"portable": ()}
# Forms of a level, for tests: `avx2-wide`, `avx2-wide-sanitized`.
FORMS = {
    # lanes and tiles of AVX-512, each vector in several registers: its code, where it cannot be executed. -O2 takes the compiler
    # twice as long; the second flag contracts products and sums as -O2 and -O3 do, on which bits depend
    "wide": ("-O1", "-fexpensive-optimizations", "-DSPARSEOPT_WIDE"),
    # memory errors and undefined behaviour end the process; libasan must be loaded first
    "sanitized": ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
}


class BuildError(RuntimeError):
    """The kernels cannot be had on this machine; the message says why."""


def levels() -> Mapping[str, tuple[str, ...]]:
    """The instruction sets the kernels are compiled for on this kind of machine, best first, with their flags."""
    return X86_LEVELS if platform.machine() in ("x86_64", "AMD64") else OTHER_LEVELS


def flags(level: str) -> tuple[str, ...]:
    """Of a level, or of one of its forms. Raises `KeyError` if there is none of this name."""
    plain, *forms = level.split("-")
    return (*FLAGS, *levels()[plain], *(flag for form in forms for flag in FORMS[form]))


def find_compiler() -> list[str]:
    """The command that compiles C++: what `CXX` says, which may have arguments, else g++ or clang++."""
    wanted = os.environ.get("CXX", "").strip()
    if not wanted:
        for candidate in ("g++", "clang++"):
            if found := shutil.which(candidate):
                return [found]
        raise BuildError("no C++ compiler: neither g++ nor clang++ was found; install one or set CXX")
    try:
        program, *arguments = shlex.split(wanted)
    except ValueError as reason:
        raise BuildError(f"CXX={wanted!r} is not a command: {reason}") from None
    found = shutil.which(program)
    if found is None:
        raise BuildError(
            f"no C++ compiler: CXX={wanted!r}, and {program} was not found; install it or change CXX"
        )
    return [found, *arguments]


def fingerprint() -> str:
    """Of the sources: another one, another library."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        content = source.read_bytes()
        digest.update(f"{source.name} {len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def identity(command: list[str], level: str) -> str:
    """Of everything that shapes a library: sources, compiler and its version, flags."""
    version = _run([*command, "--version"]).stdout
    parts = [fingerprint(), *command, version, *flags(level)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def compile_library(command: list[str], level: str, path: Path) -> None:
    """Write the library of one level to `path`. Raises `BuildError`."""
    run = _run([*command, *flags(level), str(SOURCES / "library.cpp"), "-o", str(path)])
    called = shlex.join(command)
    if run.returncode:
        said = run.stderr.strip()[-2000:] or run.stdout.strip()[-2000:]
        raise BuildError(
            f"{called} failed on the kernels with exit code {run.returncode}"
            + (f":\n{said}" if said else " and said nothing")
        )
    if not path.is_file() or not path.stat().st_size:
        raise BuildError(f"{called} wrote no library, though it exited with code 0: is it a C++ compiler?")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, check=False
        )
    except OSError as reason:
        raise BuildError(f"{shlex.join(command[:1])} cannot be run: {reason}") from None
