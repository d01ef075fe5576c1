"""The examples that compare: they run, on a small scale, and what they train learns."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytest.importorskip("mlxtend", reason="the lab is not installed")


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_sparse_gpt_learns_at_a_fraction_of_the_cost() -> None:
    loss, cost = example("sparse_gpt").train(steps=60, sparsity=0.9, width=32, depth=1, context=32)
    assert loss < 0.9 * math.log(96)
    assert cost < 0.5


@pytest.mark.slow
def test_a_pretrained_network_is_taken_to_sparse() -> None:
    accuracy = example("pretrained_to_sparse").compare(seed=0, sparsity=0.9, epochs=1, dense_epochs=5)
    assert accuracy["GMP from the dense one"] > accuracy["RigL from scratch"]
    assert accuracy["pruned at once"] > accuracy["RigL from scratch"]
    assert set(accuracy) == {"dense", "GMP from the dense one", "pruned at once", "RigL from scratch"}
