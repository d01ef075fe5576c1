"""The table of methods says what the methods do: what they begin with, and when they read the gradient of all weights."""

import re
from pathlib import Path

import pytest

import sparseopt as so

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
STEPS = 100
SETTINGS = {"total_steps": STEPS, "every": 10, "until": 0.8}


def rows() -> dict[str, list[str]]:
    """Cells by the name of the method; a bar within a cell is written with a backslash."""
    lines = re.findall(r"(?m)^\| `(?:\w+)(?:\(rule\))?` \|.*$", PAGE.read_text())
    cells = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
    return {first.strip("`").removesuffix("(rule)"): rest for first, *rest in cells}


def made(name: str) -> so.Method:
    return so.NM(so.RigL(**SETTINGS)) if name == "NM" else getattr(so, name)(**SETTINGS)


def test_every_method_has_a_row() -> None:
    methods = {
        name for name in so.__all__ if isinstance(it := getattr(so, name), type) and issubclass(it, so.Method)
    }
    assert set(rows()) == methods - {"Method", "WeightMethod"}


@pytest.mark.parametrize("name", rows())
def test_what_it_begins_with(name: str) -> None:
    _, start, *_ = rows()[name]
    expected = None if start == "any" else float(start.removeprefix("`start`, "))
    assert made(name).starts_at() == expected


@pytest.mark.parametrize("name", rows())
def test_when_it_reads_the_gradient_of_all_weights(name: str) -> None:
    _, _, said, *_ = rows()[name]
    method = made(name)
    steps = range(1, STEPS + 1)
    expected = {
        "never": [],
        "at updates": [step for step in steps if method.due(step)],
        "at updates, in part": [step for step in steps if method.due(step)],
        "always, up to `until`": [step for step in steps if step < method.end],
        "as the rule": [step for step in steps if so.RigL(**SETTINGS).due(step)],
    }.get(said, list(steps) if said.startswith("always") else None)
    assert [step for step in steps if method.needs_dense_grad(step)] == expected


@pytest.mark.parametrize("name", [name for name, cells in rows().items() if "(2s + 1)/3" in cells[4]])
def test_a_step_that_reads_it_costs_a_third_of_a_dense_one_besides(name: str) -> None:
    method = made(name)
    last = max(step for step in range(1, STEPS + 1) if method.needs_dense_grad(step))
    sparse = 0.1  # at the end, where GraNet and annealed top-k are at their sparsity
    assert method.cost_at(last, sparse) == pytest.approx((2 * sparse + 1) / 3)


@pytest.mark.parametrize("name", [name for name, cells in rows().items() if cells[4] == "s"])
def test_a_step_that_never_reads_it_costs_what_is_active(name: str) -> None:
    assert [made(name).cost_at(step, 0.1) for step in range(1, STEPS + 1)] == pytest.approx([0.1] * STEPS)
