"""The largest memory over many input sizes, beside that of the largest alone: python benchmarks/kernels/memory.py

Training steps of accelerated networks, each in a process of its own: an MLP that is given sequences of every length, two
convolutions that are given images of every height. Sizes come in random order and from small to large. With `--heap mapped`,
glibc maps every block of 64 KiB by itself (MALLOC_MMAP_THRESHOLD_), so that what is counted is what torch and the kernels hold
and not how the heap is cut: torch's own tensors of ever larger sizes leave holes in it. `--dense` runs the same without kernels,
`--engine` calls an engine instead of training.
"""

import argparse
import os
import random
import resource
import subprocess
import sys

import torch
from torch import Tensor, nn

import sparseopt as so

MIB = 1 << 10  # ru_maxrss counts KiB


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 256))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))


def sequence(size: int) -> Tensor:
    return torch.randn(2, size, 256)


def image(size: int) -> Tensor:
    return torch.randn(4, 3, size, 16)


NETWORKS = {"mlp": (mlp, sequence), "convolutions": (convolutions, image)}


def largest_memory(network: str, sizes: list[int], *, dense: bool, engine: bool) -> int:
    """KiB of the process after a training step with each size, beyond what it had before the first."""
    make, inputs = NETWORKS[network]
    model = make()
    topology = so.sparsify(model, 0.9, distribution="uniform")

    def train(x: Tensor) -> object:
        return model(x).sum().backward()

    run = train
    if engine:
        run = so.compile_inference(model, topology)
    elif not dense:
        so.accelerate(model, topology)
        if not so.kernels.accelerated_layers(model):
            raise SystemExit("the kernels are not there: nothing to measure")
    run(inputs(1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for size in sizes:
        run(inputs(size))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def in_own_process(network: str, sizes: str, given: argparse.Namespace) -> int:
    command = [sys.executable, __file__, "--network", network, "--sizes", sizes, "--count", str(given.count)]
    heap = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)} if given.heap == "mapped" else {}
    command += ["--dense"] * given.dense + ["--engine"] * given.engine
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **heap})
    return int(run.stdout)


def order(sizes: str, count: int) -> list[int]:
    if sizes == "largest":
        return [count] * 3
    found = list(range(1, count + 1))
    if sizes == "shuffled":
        random.Random(0).shuffle(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS)
    parser.add_argument("--sizes", choices=["largest", "rising", "shuffled"])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--heap", choices=["mapped", "default"], default="mapped")
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--engine", action="store_true")
    given = parser.parse_args()
    if given.network:
        torch.set_num_threads(1)
        print(
            largest_memory(
                given.network, order(given.sizes, given.count), dense=given.dense, engine=given.engine
            )
        )
        return
    print(f"| sizes 1 to {given.count} | the largest alone, MiB | rising | shuffled |\n|---|---|---|---|")
    for network in NETWORKS:
        alone, *others = (in_own_process(network, each, given) for each in ("largest", "rising", "shuffled"))
        ratios = " | ".join(f"{each / MIB:.0f} ({each / alone:.2f} x)" for each in others)
        print(f"| {network} | {alone / MIB:.0f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
