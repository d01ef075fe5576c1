"""The kernels under the address and undefined-behaviour sanitizers: a small set of shapes, and arguments that do not fit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparseopt.kernels.native import compiler, levels

pytestmark = pytest.mark.slow

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


for channels, stride, size, batch, dense in (
    (5, 1, 7, 3, None), (4, 2, 9, 1, None), (6, 2, 8, 17, None), (3, 1, 20, 2, None),
    (7, 2, 9, 3, "[ab].weight"), (4, 1, 5, 9, "[ab].weight"),
):
    model = Net(channels, stride, size)
    topology = so.sparsify(model, 0.6, exclude=dense)
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

from sparseopt.kernels.frozen.groups import groupable
from sparseopt.kernels.frozen.layouts import Cut, Layout
from sparseopt.kernels.frozen.region import FrozenRegion


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 9, 3, 2, 1), nn.Conv2d(9, 20, 1)
        self.narrow = nn.Conv2d(20, 9, (1, 5), padding=(0, 2))
        self.down, self.short, self.last = nn.Conv2d(9, 5, 3, 2, 1), nn.Conv2d(9, 5, 1, 2), nn.Conv2d(5, 4, 7, padding=3)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(self.narrow(F.relu(self.wide(x))) + x)
        return self.last(F.relu(self.down(x) + self.short(x)))


deep = Deep()
engine = so.compile_inference(deep, so.sparsify(deep, 0.6))
content = next(each for each in engine.program.modules() if isinstance(each, FrozenRegion)).content
for bands, cuts, samples, size in (
    (4, (), 1, (21, 37)), (2, (), 5, (9, 64)), (1, (), 3, (5, 7)),
    (4, (Cut(3, 2),), 5, (16, 37)), (8, (Cut(3, 1),), 9, (32, 21)),
):
    for grouped in ((), tuple(groupable(content))):
        FrozenRegion(content, (Layout(8, bands, cuts, grouped=grouped),))(torch.randn(samples, 3, *size))
print("clean")
"""


# Every call that fits, and the same with one argument changed at random: refused, or harmless.
WRONG_ARGUMENTS = """
import random, torch
from sparseopt.kernels.native.build import operators

ops = operators()
lanes = ops.lanes()
generator = random.Random(0)


def image(channels=3, height=4, width=5, border=1):
    return torch.zeros(2, height + 2 * border, channels, width + 2 * border, lanes)


def tiles(features):
    return torch.zeros(2, 1, features, 1, lanes)


def f(*sizes):
    return torch.zeros(*sizes)


def d(*sizes):
    return torch.zeros(*sizes, dtype=torch.float64)


samples = lanes + 1
position = torch.tensor([0, 5, 11], dtype=torch.int32)
norm, plain = f(3, 3), image(border=0)
source = (plain, norm, image(2, 8, 10, 0), 0, f(3, 2), 2, 1, True)
CALLS = {
    "pack": (f(samples, 3, 4, 5), image(), 1),
    "unpack": (image(), 1, f(samples, 3, 4, 5)),
    "pool_forward": (image(), 1, f(samples, 3)),
    "pool_backward": (f(samples, 3), image(), 1, True),
    "make_activation": (*source, image(), 1),
    "shortcut_backward": (image(), 1, 2, 1, image(2, 8, 9, 0), 0, False),
    "finish_gradient": (image(), 1, image(border=2), 2, plain, norm, samples, d(2, 3)),
    "tile_samples": (f(samples, 3), tiles(3)),
    "untile_samples": (tiles(3), f(samples, 3)),
    "sum_features": (tiles(3), samples, d(2, 3)),
    "normalise": (tiles(3), norm, True, tiles(3)),
    "sum_gradients": (tiles(3), tiles(3), norm, tiles(3), d(2, 3)),
    "normalise_backward": (tiles(3), f(4, 3), samples, tiles(3)),
    "batch_norm_forward": (d(2, 3), f(3), 9, f(3), f(3), 1e-5, f(3), f(3), 0.1, d(2, 3), norm),
    "batch_norm_backward": (d(2, 3), 9, d(2, 3), f(3), f(4, 3), f(2, 3)),
    "gather": ([f(3, 4)], [position], [f(3)], [f(3)]),
    "scatter": ([f(3)], [position], [f(3, 4)]),
}


def changed(value):
    if isinstance(value, list):
        return [changed(each) for each in value]
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return value + generator.choice((-2, -1, 1, 2, 1000))
    sizes = list(value.shape)
    at = generator.randrange(len(sizes))
    sizes[at] = max(0, sizes[at] + generator.choice((-1, 1, -sizes[at], 7)))
    other = torch.zeros(sizes, dtype=value.dtype)
    return generator.choice((other, value.half(), value.transpose(0, -1), other.flatten(), value.flatten()[1:]))


refused = harmless = 0
for name, arguments in CALLS.items():
    call = getattr(ops, name)
    call(*arguments)
    for _ in range(150):
        wrong = list(arguments)
        at = generator.randrange(len(wrong))
        wrong[at] = changed(wrong[at])
        if (name, at) in (("gather", 0), ("scatter", 2)):
            continue  # what positions point at is trusted
        try:
            call(*wrong)
            harmless += 1
        except (RuntimeError, ValueError, IndexError):
            refused += 1
assert refused > 4 * harmless, (refused, harmless)
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


@pytest.mark.parametrize("code", [SHAPES, WRONG_ARGUMENTS], ids=["shapes", "wrong arguments"])
@pytest.mark.skipif(asan() is None, reason="needs a compiler with the address sanitizer")
def test_no_memory_error_and_no_undefined_behaviour(code: str) -> None:
    environment = {
        **os.environ,
        "SPARSEOPT_KERNELS": f"{levels.chosen()}-sanitized",
        "LD_PRELOAD": str(asan()),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python never frees all it has
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert run.stdout == "clean\n", run.stderr[-3000:]
