"""Building the kernels: once, for the right machine, whatever else happens at the same time."""

import io
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sparseopt.kernels.native import build
from sparseopt.kernels.native.spinner import CLEAR_LINE, spinner

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


def run_with(target: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "SPARSEOPT_KERNELS": target, **environment}
    return subprocess.run(
        [sys.executable, "-c", GRADIENTS_OF_A_SMALL_NETWORK],
        capture_output=True,
        text=True,
        env=settings,
        check=False,
    )


def test_the_portable_kernels_compute_the_same() -> None:
    run = run_with("portable")
    assert run.stdout.strip() == "lanes 4", run.stderr


@pytest.mark.skipif(
    build.CAPABILITIES.get(build.torch.backends.cpu.get_cpu_capability()) is None, reason="needs AVX2"
)
def test_avx2_can_be_forced() -> None:
    run = run_with("avx2")
    assert run.stdout.strip() == "lanes 8", run.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a compiler for x86-64")
def test_avx512_compiles_where_it_cannot_run() -> None:
    assert build.library("avx512").exists()


def test_an_unknown_target_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEOPT_KERNELS", "sse9")
    with pytest.raises(build.BuildError, match=r"must be one of avx512, avx2, portable, .*got 'sse9'"):
        build.target()


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that takes its time, notes every call and writes what it is asked for. Returns the notes."""
    calls = tmp_path / "calls"
    script = tmp_path / "c++"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\n'
        f"echo call >> {calls}\nsleep 0.5\n"
        'while [ "$1" != -o ]; do shift; done\necho library > "$2"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("SPARSEOPT_CACHE", str(tmp_path / "cache"))
    return calls


def test_concurrent_first_uses_build_once(compiler: Path) -> None:
    use = "from sparseopt.kernels.native.build import library; print(library('avx2').read_text())"
    runs = [
        subprocess.Popen([sys.executable, "-c", use], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [run.communicate()[0].strip() for run in runs] == ["library"] * 3
    assert compiler.read_text() == "call\n"


def test_a_failed_build_says_what_the_compiler_said(compiler: Path) -> None:
    script = Path(os.environ["CXX"])
    script.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "out of luck" >&2\nexit 1\n')
    with pytest.raises(build.BuildError, match="out of luck"):
        build.library("avx2")
    assert not list(build.cache_folder().glob("*.so"))


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match="no-such-compiler not found; install one or set CXX"):
        build.find_compiler()


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
