"""In which tiles a convolution of a training step runs: tried at the first step with a few samples of it, kept by machine and
shape.

The kernels have several (`csrc/conv_forward.h`, `csrc/conv_backward.h`), and all give the same bits: a run that goes on
elsewhere, or without the file of measurements, is the same run.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from math import log2
from typing import Any

import torch
from torch import Tensor

from sparseopt.kernels.native.measurements import measurements
from sparseopt.kernels.native.tape import recorded

BLOCKS = 16  # of samples a thread, at most: with few, all would be in the cache, as it is not in a step
CLEARLY = 0.98  # of the first tile's time, that another one takes at most
ROUNDS = 2  # in turns; the shortest time counts


def fastest_tile(
    operator: Callable[..., None],
    tiles: int,
    lanes: int,
    key: str,
    arguments: Callable[[], Sequence[Any]],
    named: Mapping[str, Any],
) -> int:
    """The number of the fastest of so many tiles for a call of an operator, which may be made any number of times.

    `arguments` makes those of the trials, if there are any.
    """
    if tiles == 1:
        return 0
    known = measurements()
    match known.get(key):
        case (number,), _ if 0 <= number < tiles:
            return number
    blocks = trial_blocks()
    few = [_first(each, blocks) for each in arguments()]
    fewer = {name: _first(each, blocks) for name, each in named.items()}
    fewer["samples"] = min(named["samples"], blocks * lanes)
    seconds = [float("inf")] * tiles
    with recorded():  # apart from the calls of the step
        for _ in range(ROUNDS):
            for number in range(tiles):
                start = time.perf_counter()
                operator(*few, **fewer, tile=number)
                seconds[number] = min(seconds[number], time.perf_counter() - start)
    best = min(range(tiles), key=seconds.__getitem__)
    best = best if seconds[best] < CLEARLY * seconds[0] else 0
    known.put(key, (best,), seconds[best])
    return best


def trial_blocks() -> int:
    """Of samples, that tiles are tried with."""
    return BLOCKS * torch.get_num_threads()


def tile_key(
    what: str, weight: torch.Size, active: int, image: Sequence[int], stride: int, half: bool
) -> str:
    """What the time of a convolution follows from. Numbers of weights are alike within a fifth."""
    shape, size = ("x".join(map(str, each)) for each in (weight, image))
    weights = round(4 * log2(max(1, active)))
    return (
        f"training {what}, {torch.get_num_threads()} threads, {shape}, stride {stride}, {weights}/4 bits, "
        f"images {size}{', half' if half else ''}"
    )


def _first(argument: Any, blocks: int) -> Any:
    """Of an activation [block, row, channel, column, lane], so many blocks."""
    return argument[:blocks] if isinstance(argument, Tensor) and argument.dim() == 5 else argument
