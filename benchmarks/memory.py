"""Memory of training a large, very sparse MLP on the kernels, in dense and in packed storage.

    python benchmarks/memory.py

8192-8192-8192-10, 134 million weights, 99% zeros, AdamW, batch 64. One process a row; what is printed is the largest resident
memory beyond that after the imports, in MB: over steps between two updates of the masks, and over a step that updates them. The
kernel forgets the largest before each (`/proc/self/clear_refs`, Linux), so building the dense network first does not count.
What glibc keeps in its heap counts. With `--heap mapped` it maps every block of 64 KiB by itself (MALLOC_MMAP_THRESHOLD_), and
what counts is what is held.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch._dynamo  # torch loads it at the first step of any optimizer: 70 MB that no storage saves
from torch import nn
from torch.nn.functional import cross_entropy

import sparseopt as so
from sparseopt.kernels.native.build import operators

METHODS = {"rigl": so.RigL, "set": so.SET}
EVERY = 4
MEGA = 1e6


def status(field: str) -> float:
    """Of this process, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / MEGA
    raise RuntimeError(f"/proc/self/status has no {field}")


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def measure(storage: str, method: str, width: int, sparsity: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    operators()
    before = status("VmRSS")
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    topology = so.sparsify(model, sparsity, storage=storage)  # pyright: ignore[reportArgumentType]
    base = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = so.SparseOpt(base, topology, METHODS[method](total_steps=10**6, every=EVERY))
    so.accelerate(model, topology, break_even=0.0)
    x, y = torch.randn(64, width), torch.randint(0, 10, (64,))
    peaks: dict[bool, float] = {False: 0.0, True: 0.0}
    for step in range(1, 2 * EVERY + 3):
        forget_peak()
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        due = optimizer.method.due(step)
        peaks[due] = max(peaks[due], status("VmHWM") - before)
    print(f"{storage:<8} {method:<6} {peaks[False]:10.0f} {peaks[True]:12.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--sparsity", type=float, default=0.99)
    parser.add_argument("--heap", choices=("mapped", "holes"), default="holes")
    parser.add_argument("--only", nargs=2, metavar=("STORAGE", "METHOD"), help="one row, in this process")
    options = parser.parse_args()
    if options.only is not None:
        storage, method = options.only
        measure(storage, method, options.width, options.sparsity)
        return
    layer = 4 * options.width**2 / MEGA
    print(
        f"largest memory beyond the imports, MB; the largest layer is {layer:.0f} MB dense, in float32",
        flush=True,
    )
    print(f"{'storage':<8} {'method':<6} {'between':>10} {'at an update':>12}", flush=True)
    for storage in ("packed", "dense"):
        for method in METHODS:
            shape = ("--width", str(options.width), "--sparsity", str(options.sparsity))
            heap = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)} if options.heap == "mapped" else {}
            command = [sys.executable, __file__, "--only", storage, method, *shape]
            subprocess.run(command, check=True, env=os.environ | heap)


if __name__ == "__main__":
    main()
