"""A small set of shapes under the address and undefined-behaviour sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparseopt.kernels.native import compiler, levels

SHAPES = """
import torch, sparseopt as so
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(2)


class Net(nn.Module):
    def __init__(self, channels, stride, size):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.a, self.norm_a = nn.Conv2d(channels, channels, 3, stride, 1), nn.BatchNorm2d(channels)
        self.b, self.norm_b = nn.Conv2d(channels, channels, 3, 1, 1), nn.BatchNorm2d(channels)
        self.shortcut = nn.Conv2d(channels, channels, 1, stride)
        self.head, self.fc = nn.Linear(channels, 9), nn.Linear(9, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(self.norm_b(self.b(F.relu(self.norm_a(self.a(x))))) + self.shortcut(x))
        return self.fc(F.relu(self.head(x.mean((2, 3)))))


for channels, stride, size, batch in ((5, 1, 7, 3), (4, 2, 9, 1), (6, 2, 8, 17), (3, 1, 20, 2)):
    model = Net(channels, stride, size)
    topology = so.sparsify(model, 0.6)
    so.accelerate(model, topology, break_even=0.0)
    assert "forward" in model.__dict__
    x = torch.randn(batch, 3, size, size + 1, requires_grad=True)
    model(x).square().sum().backward()
    engine = so.compile_inference(model.eval(), topology)
    for samples in (1, batch):
        engine(torch.randn(samples, 3, size, size + 1))

for sizes, batch in (((7, 9, 3), 1), ((40, 33, 17, 5), 33), ((300, 64, 2), 128)):
    layers = [layer for pair in zip(sizes, sizes[1:]) for layer in (nn.Linear(*pair), nn.ReLU())]
    model = nn.Sequential(*layers)
    topology = so.sparsify(model, 0.9)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), topology, so.SET(total_steps=9, every=2))
    so.accelerate(model, topology, break_even=0.0)
    for _ in range(4):
        model(torch.randn(batch, sizes[0], requires_grad=True)).square().sum().backward()
        optimizer.step()

wide = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 40, 3, 2, 1))
so.compile_inference(wide, so.sparsify(wide, 0.3))(torch.randn(1, 3, 37, 41))  # several threads on one image
print("clean")
"""


def asan() -> Path | None:
    """The runtime that has to be loaded before Python's own allocations."""
    try:
        command = compiler.find_compiler()
    except compiler.BuildError:
        return None
    found = subprocess.run(
        [*command, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False
    )
    path = Path(found.stdout.strip())
    return path if path.is_absolute() else None


@pytest.mark.skipif(asan() is None, reason="needs a compiler with the address sanitizer")
def test_no_memory_error_and_no_undefined_behaviour() -> None:
    environment = {
        **os.environ,
        "SPARSEOPT_KERNELS": f"{levels.chosen()}{compiler.SANITIZED}",
        "LD_PRELOAD": str(asan()),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python never frees all it has
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    run = subprocess.run(
        [sys.executable, "-c", SHAPES], capture_output=True, text=True, env=environment, check=False
    )
    assert run.stdout == "clean\n", run.stderr[-3000:]
