"""Which of the compiled levels this CPU can execute, and which one is used."""

import os
from functools import cache
from pathlib import Path

from sparseopt.kernels.native.compiler import FORMS, levels

# As Linux names them: what gcc takes for granted with -march=x86-64-v3 and -v4.
V3 = frozenset(("avx", "avx2", "fma", "bmi1", "bmi2", "f16c", "abm", "movbe", "xsave"))
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
NEEDS = {"avx512": V4, "avx2": V3, "portable": frozenset()}


@cache
def features() -> frozenset[str]:
    """What the CPU and the system can do."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            found = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        found = ""
    return frozenset(found.partition(":")[2].split())


def possible() -> list[str]:
    """Levels that this machine can execute, best first."""
    return [level for level in levels() if NEEDS[level] <= features()]


def chosen() -> str:
    """The best level, or what `SPARSEOPT_KERNELS` names. Raises `ValueError` where that cannot be."""
    forced = os.environ.get("SPARSEOPT_KERNELS")
    if not forced:
        return possible()[0]
    check(forced, "SPARSEOPT_KERNELS")
    return forced


def check(level: str, parameter: str) -> None:
    plain, *forms = level.split("-")
    if plain not in possible() or not FORMS.keys() >= set(forms):
        why = "this CPU cannot execute it" if level in levels() else "there is no such level"
        raise ValueError(f"{parameter} must be one of {', '.join(possible())}, got {level!r}: {why}")
