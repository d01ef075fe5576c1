"""A frozen chain of linear layers (see `csrc/frozen_chain.h`)."""

import time
from collections.abc import Callable
from functools import partial
from math import log2
from threading import Lock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparseopt.kernels.frozen.description import Linears
from sparseopt.kernels.frozen.tuned import CLEARLY
from sparseopt.kernels.native.arguments import FLOAT, address
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.interface import FrozenLinear
from sparseopt.kernels.native.measurements import measurements
from sparseopt.kernels.native.memory import zeros
from sparseopt.kernels.native.network import NativeChain, weights

# Vectors of samples that pass together (0: single samples) and features whose weights follow one another (0: all).
WAYS = ((0, 0), (1, 0), (2, 0), (4, 0), (4, 256), (4, 512), (8, 0), (8, 128), (8, 256))
MANY = 128  # samples from which on more of them change nothing
DENSE = -1  # instead of the vectors: torch is faster
RUNS = 5

RunChain = Callable[[Tensor], Tensor]
ChainWay = tuple[int, int, bool]
"""Of `WAYS`, and whether one thread is faster than several."""


class FrozenChain(nn.Module):
    """How it runs is measured once a number of samples, up to a power of two."""

    def __init__(self, linears: Linears) -> None:
        super().__init__()
        self.content = linears
        self._features = linears.steps[0].weight.shape[1]
        self._made: dict[tuple[int, int], NativeChain | DenseChain] = {}
        self._chosen: dict[tuple[int, int], tuple[ChainWay, float]] = {}  # by samples and threads
        self._last: tuple[int, int, RunChain] | None = None  # read without the lock
        self._lock = Lock()

    def make(self, lanes: int, vectors: int, block: int) -> NativeChain:
        """So many vectors of samples at a time, 0: single samples; the weights of `block` features after one another."""
        steps = self.content.steps
        layers = [
            FrozenLinear(
                weights(step.weight.position, step.weight.values, step.weight.shape),
                address(step.bias, FLOAT, step.weight.shape[0]),
                step.activation,
            )
            for step in steps
        ]
        kept = [each for step in steps for each in (step.weight.position, step.weight.values, step.bias)]
        chain = operators().chain(lanes, layers, kept)
        chain.choose(vectors, block)
        return chain

    def forward(self, x: Tensor) -> tuple[Tensor]:
        if x.shape[-1] != self._features or (self.content.flat and x.dim() != 2):
            shape = f"(N, {self._features})" if self.content.flat else f"(..., {self._features})"
            raise RuntimeError(f"expected features of shape {shape}, got {tuple(x.shape)}")
        if x.dtype is not FLOAT or not x.is_contiguous() or x.is_neg():
            x = x.float().resolve_neg().contiguous()
        return (self._runner(x.numel() // self._features)(x),)

    def report(self) -> dict[str, str]:
        """How the layers run for the number of samples that came last; empty before the first ones."""
        if not self._chosen:
            return {}
        (samples, _), ((vectors, block, alone), seconds) = next(reversed(self._chosen.items()))
        together = f"{vectors} x {operators().lanes()} samples together" if vectors else "single samples"
        blocks = f", {block} features in a block" if block else ""
        threads = ", one thread" if alone else ""
        how = "dense: torch is faster" if vectors == DENSE else f"{together}{blocks}{threads}"
        return dict.fromkeys(self.content.names(), f"{how}, the chain {seconds * 1e3:.3g} ms for {samples}")

    def _runner(self, samples: int) -> RunChain:
        last, threads = self._last, torch.get_num_threads()
        few = min(samples, MANY + 1)
        if last is not None and last[:2] == (few, threads):
            return last[2]
        size = 1 << (max(min(few, MANY), 1) - 1).bit_length(), threads
        with self._lock:
            found = self._chosen.pop(size, None) or self._choose(*size)
            self._chosen[size] = found
            vectors, block, alone = found[0]
            run = self._way(
                vectors, block, alone and samples <= MANY
            )  # of more, every thread has some of its own
            self._last = (few, threads, run)
            return run

    def _way(self, vectors: int, block: int, alone: bool) -> RunChain:
        if (vectors, block) not in self._made:
            dense = vectors == DENSE
            self._made[vectors, block] = (
                DenseChain(self.content) if dense else self.make(operators().lanes(), vectors, block)
            )
        chain = self._made[vectors, block]
        return partial(chain.run, alone=alone) if isinstance(chain, NativeChain) else chain.run

    def _choose(self, samples: int, several: int) -> tuple[ChainWay, float]:
        """The fastest way for so many samples and threads, measured here or before."""
        known, key = measurements(), self._key(samples, several)
        fitting = [each for each in WAYS if (samples <= 4 if each[0] == 0 else self._fits(each[0], samples))]
        threads = (False, True) if several > 1 else (False,)
        ways = [*((*each, alone) for each in fitting for alone in threads), (DENSE, 0, False)]
        match known.get(key):
            case (int(vectors), int(block), int(alone)), seconds if (vectors, block, bool(alone)) in ways:
                return (vectors, block, bool(alone)), seconds
        x = zeros(samples, self._features)
        times = {each: shortest(self._way(*each), x) for each in ways}
        best = min(times, key=lambda each: times[each] / (CLEARLY if each[2] else 1))
        known.put(key, best, times[best])
        known.keep()
        in_use = [best[:2], *(each[:2] for each, _ in self._chosen.values())]
        self._made = {each: chain for each, chain in self._made.items() if each in in_use}
        return best, times[best]

    def _fits(self, vectors: int, samples: int) -> bool:
        """Neither more lanes than half of which would be empty, nor more groups than a few vectors need."""
        lanes = operators().lanes()
        return vectors * lanes < 2 * max(samples, lanes) and (samples <= lanes or vectors > 1)

    def _key(self, samples: int, threads: int) -> str:
        layers = ", ".join(
            f"{step.weight.shape[0]} x {step.weight.shape[1]} {round(4 * log2(max(1, len(step.weight.values))))}/4 bits"
            for step in self.content.steps
        )
        return f"chain, {threads} threads, {samples} samples, {layers}"

    def __deepcopy__(self, memo: dict[int, object]) -> "FrozenChain":
        return FrozenChain(self.content)


def shortest(run: RunChain, x: Tensor) -> float:
    """Seconds of the shortest of a few runs."""
    run(x)
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run(x)
        times.append(time.perf_counter() - start)
    return min(times)


class DenseChain:
    """The same by torch's own matrix products."""

    def __init__(self, linears: Linears) -> None:
        self._layers = [(step.weight.dense(), step.bias, step.activation) for step in linears.steps]

    @torch.no_grad()
    def run(self, x: Tensor) -> Tensor:
        for weight, bias, activation in self._layers:
            x = activation.of(F.linear(x, weight, bias))
        return x
