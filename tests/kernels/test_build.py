"""Building the kernels: once, for the right machine, whatever else happens at the same time."""

import io
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import sparseopt as so
from sparseopt.kernels.native import build, compiler, levels
from sparseopt.kernels.native.spinner import CLEAR_LINE, spinner

pytestmark = pytest.mark.slow

GRADIENTS_OF_A_SMALL_NETWORK = """
import torch, sparseopt as so
from torch import nn
from sparseopt.kernels.native.build import operators
torch.manual_seed(0)
torch.set_num_threads(1)
convs = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3, 2)
model = nn.Sequential(*convs, nn.Flatten(), nn.Linear(54, 5))
topology = so.sparsify(model, 0.6)
x = torch.randn(9, 3, 8, 8)
found = []
for accelerated in (False, True):
    if accelerated:
        so.accelerate(model, topology, break_even=0.0)
        assert "forward" in model.__dict__
    model.zero_grad()
    model(x).square().sum().backward()
    found.append([p.grad * topology.masks.get(n, torch.tensor(1)) for n, p in model.named_parameters()])
for dense, sparse in zip(*found):
    assert torch.allclose(dense, sparse, rtol=1e-3, atol=1e-2), (dense - sparse).abs().max()
print("lanes", operators().lanes())
"""
LANES = {"avx512": 16, "avx2": 8, "portable": 4}
WIDE = (
    next(level for level in levels.possible() if level != "avx512") + "-wide"
)  # AVX-512's lanes without its registers


@pytest.mark.parametrize("level", [*levels.possible(), WIDE])
def test_every_level_computes_the_same(level: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", GRADIENTS_OF_A_SMALL_NETWORK],
        capture_output=True,
        text=True,
        env={**os.environ, "SPARSEOPT_KERNELS": level},
        check=False,
    )
    assert run.stdout.strip() == f"lanes {16 if level == WIDE else LANES[level]}", run.stderr


def test_two_levels_in_one_process_keep_to_themselves() -> None:
    for level in levels.possible():
        operators = build.operators(level)
        assert operators.lanes() == LANES[level]
        image = torch.randn(3, 2, 4, 5)
        packed, back = torch.zeros(-(-3 // LANES[level]), 4, 2, 5, LANES[level]), torch.zeros_like(image)
        operators.pack(image, packed, 0)
        operators.unpack(packed, 0, back)
        assert torch.equal(image, back)


@pytest.mark.parametrize("command", ["g++", "clang++"])
@pytest.mark.parametrize("level", compiler.levels())
def test_compilers_take_the_flags_and_the_sources(command: str, level: str) -> None:
    """Of levels that cannot run here, too; the wheel has them compiled."""
    if shutil.which(command) is None:
        pytest.skip(f"needs {command}")
    source = str(compiler.SOURCES / "library.cpp")
    run = subprocess.run(
        [command, *compiler.flags(level), "-fsyntax-only", source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("level", ["sse9", "avx512", "avx2-tall"])
def test_a_level_that_cannot_be_is_an_error(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "features", lambda: levels.V3)
    monkeypatch.setenv("SPARSEOPT_KERNELS", level)
    monkeypatch.setattr(build, "operators", build.operators.__wrapped__)
    with pytest.raises(ValueError, match=f"avx2, portable.* '{level}'"):
        levels.chosen()


def test_acceleration_with_an_unknown_level_is_refused() -> None:
    code = "import torch, sparseopt as so; m = torch.nn.Linear(99, 99); so.accelerate(m, so.sparsify(m, 0.9))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "SPARSEOPT_KERNELS": "bogus"},
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("ValueError: SPARSEOPT_KERNELS ")


@pytest.mark.parametrize(
    ("has", "best"),
    [
        (levels.V4 | {"sse2"}, "avx512"),
        (levels.V4 - {"avx512dq"}, "avx2"),
        (levels.V3 - {"fma"}, "portable"),
        (levels.V3 - {"bmi2"}, "portable"),
        (frozenset(), "portable"),
    ],
)
def test_a_cpu_gets_what_it_can_execute(
    has: frozenset[str], best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "features", lambda: has)
    monkeypatch.delenv("SPARSEOPT_KERNELS", raising=False)
    monkeypatch.setattr(levels, "levels", lambda: compiler.X86_LEVELS)
    assert levels.chosen() == best


class Compiler:
    """A compiler that is a shell script; it notes every call with its arguments."""

    def __init__(self, folder: Path) -> None:
        self.script, self.calls = folder / "c++", folder / "calls"
        self.writes('while [ "$1" != -o ]; do shift; done\necho library > "$2"')

    def writes(self, code: str) -> None:
        head = f'#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "$@" >> {self.calls}\n'
        self.script.write_text(head + code + "\n")
        self.script.chmod(0o755)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    fake = Compiler(tmp_path)
    monkeypatch.setenv("CXX", str(fake.script))
    monkeypatch.setenv("SPARSEOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "BUILT", tmp_path)
    build._compiled.cache_clear()
    return fake


def content(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


def test_concurrent_first_uses_build_once(fake: Compiler) -> None:
    fake.writes('sleep 0.5\nwhile [ "$1" != -o ]; do shift; done\necho library > "$2"')
    use = "import os; from sparseopt.kernels.native.build import library; print(os.read(library('portable'), 7).decode())"
    runs = [
        subprocess.Popen([sys.executable, "-c", use], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [run.communicate()[0].strip() for run in runs] == ["library"] * 3
    assert len(fake.calls.read_text().splitlines()) == 1


def test_a_failed_build_says_what_the_compiler_said(fake: Compiler, tmp_path: Path) -> None:
    fake.writes('echo "out of luck" >&2\nexit 1')
    with pytest.raises(build.BuildError, match="out of luck"):
        build.library("portable")
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_compiler_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(build.BuildError, match=r"/bin/false.* 1"):
        build.library("portable")


def test_a_compiler_that_writes_nothing(fake: Compiler) -> None:
    fake.writes("exit 0")
    with pytest.raises(build.BuildError, match="wrote no library"):
        build.library("portable")


def test_a_compiler_that_cannot_be_executed(fake: Compiler) -> None:
    fake.script.write_bytes(b"\x7fELF nonsense")
    with pytest.raises(build.BuildError, match="cannot be run"):
        build.library("portable")


def test_a_compiler_with_arguments(fake: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"env {fake.script} -Dwith='an argument'")
    assert content(build.library("portable")).startswith(b"library\n")
    assert fake.calls.read_text().startswith("-Dwith=an argument ")


@pytest.mark.parametrize("wanted", ["no-such-compiler", "no-such-ccache g++", "'g++"])
def test_no_compiler(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", wanted)
    with pytest.raises(build.BuildError, match="CXX="):
        compiler.find_compiler()


def test_what_is_no_library_leaves_the_model_as_it_was(
    fake: Compiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build._operators.cache_clear()
    build.operators.cache_clear()
    model = nn.Sequential(nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 50))
    with caplog.at_level(logging.WARNING):
        so.accelerate(model, so.sparsify(model, 0.9))
    assert "forward" not in model.__dict__
    assert any("cannot be loaded" in each for each in caplog.messages)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_spinner_turns_on_a_terminal_and_leaves_no_trace() -> None:
    terminal = Terminal()
    with spinner("compiling", terminal):
        pass
    assert "| compiling, 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith(CLEAR_LINE)


def test_nothing_turns_where_nobody_watches() -> None:
    file = io.StringIO()
    with spinner("compiling", file):
        pass
    assert file.getvalue() == ""
