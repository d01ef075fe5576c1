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
from sparseopt.lab.config.differences import contrasted, differing

DECISIVE = (
    "sparseopt",
    "git_revision",
    "python",
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

CONTINUED = "continued"
"""In the record of a run: what was another when it went on, each time that something was."""


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


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What may change the bits and is not as it was recorded last, if it was: `torch was 2.12, is 2.13`."""
    return contrasted(_latest(before), _decisive(now), "was {there}, is {here}")


def continued(record: Mapping[str, Any], now: Mapping[str, Any], step: int | None) -> dict[str, Any]:
    """The record of a run that goes on from a step, with what is another now."""
    here = _decisive(now)
    changed = {name: here[name] for name in differing([_latest(record), here])}
    return {**record, CONTINUED: [*_continuations(record), {"step": step, **changed}]}


def in_words(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run ran on, versions first; where it went on with something else, both: `2.12, then 2.13`."""
    told = {name: value for name, value in _flat(record).items() if name != CONTINUED}
    for later in _continuations(record):
        for name, value in _decisive(later).items():
            told[name] = f"{told[name]}, then {value}" if name in told else value
    return told


def _latest(record: Mapping[str, Any]) -> dict[str, Any]:
    told = _decisive(record)
    for later in _continuations(record):
        told |= _decisive(later)
    return told


def _continuations(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    told = record.get(CONTINUED)
    return [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []


def _decisive(record: Mapping[str, Any]) -> dict[str, Any]:
    told = _flat(record)
    return {name: told[name] for name in DECISIVE if name in told}


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    rest = dict(record)
    versions = rest.pop("versions", None)
    return {**(versions if isinstance(versions, dict) else {}), **rest}


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
