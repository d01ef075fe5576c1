"""A resumed run is the same run: 2N steps equal N steps, save, a new process, load, N steps, to the bit."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import METHODS
from torch import Tensor

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("resume_run.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of all runs; a new process took up what the first one had saved."""
    folder = tmp_path_factory.mktemp("resume")
    for parts in (["whole", "first"], ["second"]):
        subprocess.run([sys.executable, "-W", "error", str(SCRIPT), str(folder), *parts], check=True)
    return folder


def assert_same(one: Any, other: Any, path: str = "state") -> None:
    """Equal in structure and in every bit."""
    assert type(one) is type(other), path
    if isinstance(one, Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for index, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, path=f"{path}[{index}]")
    else:
        assert one == other, path


BASES = ["sgd", "ham", "adamw", "rmsprop", "adagrad", "nadam", "radam", "asgd", "rprop", "lbfgs"]
if hasattr(torch.optim, "Muon"):  # torch 2.9
    BASES.append("muon")
COMBINATIONS = [
    (method, base)
    for method in METHODS
    for base in (BASES if method in ("static", "set", "rigl") else ["sgd", "adamw", "lbfgs"])
]


@pytest.mark.parametrize(("method", "base"), COMBINATIONS)
def test_a_resumed_run_is_the_same_run(folder: Path, method: str, base: str) -> None:
    whole, first, second = (
        torch.load(folder / f"{part}-{method}-{base}.pt", weights_only=True)
        for part in ("whole", "first", "second")
    )
    assert_same(whole, second)
    assert whole["optimizer"]["sparseopt"]["steps"] == 2 * first["optimizer"]["sparseopt"]["steps"]
    if method in ("static", "set", "rigl"):
        masks = [
            run["optimizer"]["sparseopt"]["topology"]["layers"]["0.weight"]["mask"] for run in (first, second)
        ]
        assert torch.equal(*masks) == (method == "static")  # the second half did move connections
