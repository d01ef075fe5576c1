"""Fair timing on a machine that is never quite idle: all candidates take turns in one process."""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def options(description: str | None, **more: tuple[type, object]) -> argparse.Namespace:
    """What all benchmarks can be told, and what this one can be told besides: name = (type, default)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.9, 0.95, 0.97])
    parser.add_argument("--distribution", nargs="+", choices=("erk", "uniform"), default=["erk", "uniform"])
    parser.add_argument(
        "--dense",
        nargs="+",
        choices=("eager", "compiled"),
        default=["eager", "compiled"],
        help="what to compare with; compiling a large network takes minutes",
    )
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: on a busy machine, with one thread"
    )
    for name, (kind, default) in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(machine(given.clock))
    return given


def interleaved(
    candidates: Mapping[str, Callable[[], object]], repeats: int, clock: str, *, inner: int = 1
) -> dict[str, float]:
    """Median milliseconds of each candidate, which are called in turn, `repeats` rounds of `inner` calls."""
    now = CLOCKS[clock]
    for candidate in candidates.values():
        for _ in range(3):
            candidate()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, candidate in candidates.items():
            start = now()
            for _ in range(inner):
                candidate()
            times[name].append((now() - start) / inner * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


def print_table(title: str, times: Mapping[str, float]) -> None:
    """Every candidate against the fastest dense one; the dense ones' names begin with "dense"."""
    dense = min(value for name, value in times.items() if name.startswith("dense"))
    print(f"\n{title}\n")
    print("| | ms | dense / this |\n|---|---|---|")
    for name, value in times.items():
        print(f"| {name} | {value:.2f} | {dense / value:.2f} |")


def machine(clock: str) -> str:
    """What the numbers depend on."""
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    load = os.getloadavg()[0]
    return (
        f"{model}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} thread(s), "
        f"torch {torch.__version__}, {clock} time, load average at the start {load:.1f}"
    )
