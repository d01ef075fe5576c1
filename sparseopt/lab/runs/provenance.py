"""What a run ran on, for whoever wants to repeat it."""

import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import sparseopt
from sparseopt.lab.config.differences import contrasted

DECISIVE = (
    "sparseopt",
    "git_revision",
    "torch",
    "device",
    "processor",
    "threads",
    "ranks",
    "accelerate",
    "storage",
    "on_kernels",
)
"""What may change the numbers of a run besides its settings."""


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, revision, machine: everything besides the configuration that may change the bits."""
    return {
        "versions": {
            "sparseopt": sparseopt.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in ("torch", "numpy", "mlxtend")},
        },
        "git_revision": git_revision(),
        "device": str(device),
        "processor": _processor(device),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
    }


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What may change the bits and is not as it was recorded, if it was: `torch was 2.12, is 2.13`."""
    return contrasted(_decisive(before), _decisive(now), "was {there}, is {here}")


def _decisive(record: Mapping[str, Any]) -> dict[str, Any]:
    told = {**record.get("versions", {}), **record}
    return {name: told[name] for name in DECISIVE if name in told}


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


@cache
def git_revision() -> str | None:
    """The commit of a source checkout, "-dirty" added where files differ from it; None for an installed package.

    Asked once: a process goes on with the code that it began with.
    """
    package = Path(sparseopt.__file__).resolve().parent
    if not (package.parent / ".git").exists():
        return None
    command = [
        "git",
        "-C",
        str(package.parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
