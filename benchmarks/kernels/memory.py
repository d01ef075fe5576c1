"""The largest memory over many input sizes, beside that of the largest alone: python benchmarks/kernels/memory.py

Training steps of accelerated networks, calls of their engines, and training steps of the same networks in dense torch, each in a
process of its own: an MLP that is given sequences of every length, two convolutions that are given images of every height. Sizes
come from small to large and in random order. What is counted is the memory of the process, holes in the heap included: all of it,
and what it has beyond that after the smallest input. With `--heap mapped`, glibc maps every block of 64 KiB by itself
(MALLOC_MMAP_THRESHOLD_) and leaves no holes.
"""

import argparse
import logging
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

import sparseopt as so

MIB = 1 << 10  # ru_maxrss counts KiB


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 128))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))


def sequence(size: int) -> Tensor:
    return torch.randn(4, size, 128)


def image(size: int) -> Tensor:
    return torch.randn(8, 3, size, 16)


WAYS = ("accelerated", "engine", "dense")
SIZES = ("largest", "rising", "shuffled")
NETWORKS = {"mlp": (mlp, sequence), "convolutions": (convolutions, image)}


def runner(model: nn.Module, way: str) -> Callable[[Tensor], object]:
    topology = so.sparsify(model, 0.9, distribution="uniform")
    if way == "engine":
        return so.compile_inference(model, topology)
    if way == "accelerated":
        so.accelerate(model, topology)
        if not so.kernels.accelerated_layers(model):
            raise SystemExit("the kernels are not there: nothing to measure")
    return lambda x: model(x).sum().backward()


def largest_memory(network: str, way: str, sizes: list[int]) -> tuple[int, int]:
    """KiB of the process after a call with each size: in all, and beyond what it had after the smallest."""
    make, inputs = NETWORKS[network]
    run = runner(make(), way)
    run(inputs(1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for size in sizes:
        run(inputs(size))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most, most - before


def in_own_process(network: str, way: str, sizes: str, given: argparse.Namespace) -> tuple[int, int]:
    command = [sys.executable, __file__, "--network", network, "--way", way, "--sizes", sizes]
    heap = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)} if given.heap == "mapped" else {}
    command += ["--count", str(given.count)]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **heap})
    whole, beyond = map(int, run.stdout.split())
    return whole, beyond


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
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--sizes", choices=SIZES)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--heap", choices=["mapped", "default"], default="default")
    given = parser.parse_args()
    if given.sizes:
        torch.set_num_threads(1)
        logging.getLogger("sparseopt").setLevel(logging.ERROR)
        print(*largest_memory(given.network, given.way, order(given.sizes, given.count)))
        return
    print(
        f"| sizes 1 to {given.count} | | the largest alone: all, beyond the smallest, MiB | rising | shuffled |\n"
        "|---|---|---|---|---|"
    )
    for network in [given.network] if given.network else NETWORKS:
        for way in [given.way] if given.way else WAYS:
            alone, *others = (in_own_process(network, way, each, given) for each in SIZES)
            ratios = " | ".join(
                f"{whole / alone[0]:.2f} x, {beyond / alone[1]:.2f} x" for whole, beyond in others
            )
            print(
                f"| {network} | {way} | {alone[0] / MIB:.0f}, {alone[1] / MIB:.0f} | {ratios} |", flush=True
            )


if __name__ == "__main__":
    main()
