"""Dependencies point one way: lab -> analysis, kernels, optim -> methods -> topology -> torch, and within the lab from what a
person types down to what a file holds. Read from the source, so that imports inside functions count as well."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sparseopt

ROOT = Path(sparseopt.__file__).parent

CORE: dict[str, set[str]] = {
    "topology": set(),
    "methods": {"topology"},
    "optim": {"topology", "methods"},
    "kernels": {"topology"},
    "analysis": {"topology", "methods", "optim"},
}
"""The core's places, and what each may import."""

KERNELS: dict[str, set[str]] = {
    "native": set(),
    "match": {"native"},
    "conv": {"native", "match"},
    "linear": {"native", "match"},
    "frozen": {"native", "match"},
}
"""The kernels' folders, and what each may import: inference (`frozen`) knows nothing of training (`conv`, `linear`)."""

LAB = [
    "errors",
    "system",
    "data",
    "models",
    "config",
    "runs",
    "show",
    "cli",
    "training",
    "analyses",
    "report",
    "export",
]
LAB += ["sweep", "reproduce", "speed", "demo", "commands"]
"""The lab's places: each may import those before it."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its full name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imported(path: Path) -> frozenset[str]:
    """The modules that a file imports, anywhere in it: `from a import b` is a.b where that is a module."""
    return frozenset(_imports(ast.parse(path.read_text())))


def _imports(tree: ast.Module) -> Iterator[str]:
    known = modules()
    for node in _running(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "relative imports hide what depends on what"
            for each in node.names:
                inner = f"{node.module}.{each.name}"
                yield inner if inner in known else node.module


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run: what stands under `if TYPE_CHECKING` is for the type checker alone."""
    for node in ast.iter_child_nodes(tree):
        if not (
            isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        ):
            yield node
            yield from _running(node)


def place(module: str) -> str:
    """The folder that a module belongs to: `lab/show`, `optim`; empty for the package itself."""
    parts = module.split(".")[1:]
    return "/".join(parts[:2] if parts[:1] == ["lab"] else parts[:1])


def crossings() -> Iterator[tuple[str, str]]:
    """(importing module, imported module) wherever an import leaves its folder and stays in the package."""
    for module, path in modules().items():
        for target in imported(path):
            if target.split(".")[0] == "sparseopt" and place(target) != place(module):
                yield module, target


def test_the_core_points_one_way() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, target in crossings()
        if place(module) in CORE and place(target) not in CORE[place(module)]
    ]
    assert not wrong


def test_a_topology_does_not_know_how_it_began() -> None:
    prefix = "sparseopt.topology.start"
    wrong = [
        f"{module} imports {target}"
        for module, path in modules().items()
        for target in imported(path)
        if place(module) in ("topology", "optim", "kernels") and target.startswith(prefix)
        if module != "sparseopt.topology" and not module.startswith(prefix)
    ]
    assert not wrong


def test_the_kernels_point_one_way() -> None:
    prefix = "sparseopt.kernels."
    wrong = [
        f"{module} imports {target}"
        for module, path in modules().items()
        for target in imported(path)
        if module.startswith(prefix) and target.startswith(prefix)
        if (here := module.split(".")[2]) in KERNELS
        if (there := target.split(".")[2]) != here and there not in KERNELS[here]
    ]
    assert not wrong


def test_every_class_has_a_name_of_its_own() -> None:
    """A name that stands for two things makes a reader look up which."""
    homes: dict[str, list[str]] = {}
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", CORE)
def test_the_core_imports_torch_and_nothing_else(name: str) -> None:
    allowed = {"torch", "sparseopt", *sys.stdlib_module_names}
    found = {
        f"{module} imports {target}"
        for module, path in modules().items()
        if place(module) == name
        for target in imported(path)
        if target.split(".")[0] not in allowed
    }
    assert not found


def test_the_lab_has_an_order() -> None:
    order = {f"lab/{name}": rank for rank, name in enumerate(LAB)}
    known = {place(module) for module in modules() if module.startswith("sparseopt.lab.")}
    assert known == set(order), "a new folder of the lab belongs into the order"
    wrong = [
        f"{module} imports {target}"
        for module, target in crossings()
        if place(module) in order and order.get(place(target), -1) >= order[place(module)]
    ]
    assert not wrong


def test_no_command_imports_another() -> None:
    commands = [module for module in modules() if module.startswith("sparseopt.lab.commands.")]
    wrong = [
        f"{module} imports {target}"
        for module in commands
        for target in imported(modules()[module])
        if target.startswith("sparseopt.lab.commands.")
    ]
    assert not wrong


@pytest.mark.parametrize("name", ["runs", "plot", "report"])
def test_what_reads_runs_does_not_load_what_trains_them(name: str) -> None:
    loaded, waiting = set[str](), [f"sparseopt.lab.commands.{name}"]
    while waiting:
        module = waiting.pop()
        if module.startswith("sparseopt.lab") and module not in loaded:
            loaded.add(module)
            waiting += [*imported(modules()[module]), module.rpartition(".")[0]]
    assert not {module for module in loaded if place(module) == "lab/training"}


def test_no_modules_import_each_other() -> None:
    graph = {
        module: imported(path) - {module} for module, path in modules().items() if path.name != "__init__.py"
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' -> '.join(error.args[1])}")
