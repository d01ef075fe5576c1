"""How the layers of a region run: found by trying, in milliseconds, and kept by machine and shape.

A layer can be computed in tiles of several sizes, and read its input where it is or copy what a tile reads of a block of channels
together first (see `csrc/inference.h`). All ways give the same bits; which one is fastest follows from the layer's shape, from
the caches and registers of the machine, and from nothing that one could look up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, log2

from sparseopt.kernels.frozen.bands import Extent, Patches
from sparseopt.kernels.frozen.description import ConvStep, Step
from sparseopt.kernels.frozen.program import FrozenProgram
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.measurements import Measurements
from sparseopt.kernels.native.network import TileSize

WASTE = 1.35  # a tile may compute this much beyond the image, compared with the one that fits best
COPIES = (
    12_000,
    24_000,
    48_000,
    96_000,
)  # bytes of input that a block of channels copies together, about a first-level cache
WIDE = 14  # vectors of a tile that need more than 16 registers
FINALISTS, CLOSE = (
    5,
    1.4,
)  # ways that take turns: so many at most, and none that takes so many times the time of another
TURNS = 4
SECONDS = 1e-3  # that one of them is tried in all, if it takes less
FEWEST, MOST = 2, 20  # runs


@dataclass(frozen=True)
class Way:
    """Tile, and the input channels that are copied together; 0: the input is read where it is."""

    tile: TileSize
    block: int
    seconds: float = 0.0

    def __str__(self) -> str:
        copied = f", {self.block} channels copied" if self.block else ""
        return f"{self.tile.rows} x {self.tile.columns} tiles{copied}"


def ways(step: ConvStep, lanes: int, rows: int, width: int, group: int = 0) -> list[Way]:
    """The ways that are worth trying for a layer whose output has so many rows and columns a patch, and whose input lies in
    groups of so many columns."""
    tiles = [
        tile
        for tile in operators().tiles(lanes)
        if tile.vectors <= WIDE or operators().lanes() == 16  # AVX-512 has 32 registers
    ]
    least = min(_waste(tile, rows, width) for tile in tiles)
    return [
        Way(tile, block)
        for tile in tiles
        if _waste(tile, rows, width) <= WASTE * least
        for block in _blocks(step, tile, lanes, group)
    ]


def _waste(tile: TileSize, rows: int, width: int) -> float:
    return ceil(rows / tile.rows) * tile.rows * ceil(width / tile.columns) * tile.columns / (rows * width)


def _blocks(step: ConvStep, tile: TileSize, lanes: int, group: int) -> Iterator[int]:
    if step.stride in tile.direct and (group == 0 or (step.kernel, step.stride) == ((1, 1), 1)):
        yield 0
    channels, kernel_rows, kernel_columns = step.weight.shape[1:]
    rows = (tile.rows - 1) * step.stride + kernel_rows
    window = (tile.columns - 1) * step.stride + kernel_columns
    columns = ceil(window / step.stride) * min(
        step.stride, kernel_columns
    )  # those that no weight reads are left out
    sizes = {min(channels, copied // (rows * columns * lanes * 4)) for copied in COPIES}
    yield from sorted(size for size in sizes if size >= min(4, channels))


def tune(program: FrozenProgram, steps: tuple[Step, ...], known: Measurements) -> list[Way]:
    """Choose the fastest way of every step, and return them with their times for the samples that run together there."""
    return [
        _tune_layer(program, number, step, known)
        if isinstance(step, ConvStep)
        else Way(operators().tiles(program.layout.lanes)[0], 0, program.network.time(number, FEWEST))
        for number, step in enumerate(steps)
    ]


def _tune_layer(program: FrozenProgram, number: int, step: ConvStep, known: Measurements) -> Way:
    lanes, size, group = program.layout.lanes, program.made[number], program.groups[number]
    candidates = ways(step, lanes, *size, group)
    key = _key(step, lanes, program.patches(number), program.extents[step.input], size, group)
    best = _remembered(known.get(key), candidates)
    if best is None:
        best = _fastest(program, number, candidates)
        known.put(key, best.tile.number, best.block, best.seconds)
    program.network.choose(number, best.tile.number, best.block)
    return best


def _remembered(found: tuple[int, int, float] | None, candidates: list[Way]) -> Way | None:
    """What was measured, if it is among what could be."""
    for way in candidates:
        if found is not None and (way.tile.number, way.block) == found[:2]:
            return Way(way.tile, way.block, found[2])
    return None


def _fastest(program: FrozenProgram, number: int, candidates: list[Way]) -> Way:
    """Every way is tried once; those that are not far behind take turns, because a moment may be a bad one for one of them."""
    network = program.network

    def timed(way: Way, seconds: float) -> Way:
        network.choose(number, way.tile.number, way.block)
        network.time(number, 1)  # brings weights and lists into the cache
        runs = int(min(MOST, max(1, seconds / max(way.seconds, 1e-9))))
        return replace(way, seconds=network.time(number, runs))

    tried = sorted((timed(way, 0.0) for way in candidates), key=lambda way: way.seconds)
    close = [way for way in tried[:FINALISTS] if way.seconds <= CLOSE * tried[0].seconds]
    for _ in range(TURNS if len(close) > 1 else 0):
        again = [timed(way, SECONDS / TURNS) for way in close]
        close = [
            replace(way, seconds=min(way.seconds, new.seconds)) for way, new in zip(close, again, strict=True)
        ]
    return min(close, key=lambda way: way.seconds)


def _key(
    step: ConvStep, lanes: int, patches: Patches, read: Extent, size: tuple[int, int], group: int
) -> str:
    """What the time of a layer follows from. Numbers of weights are alike within a fifth."""
    weights = round(4 * log2(max(1, len(step.weight.values))))
    shape = "x".join(map(str, step.weight.shape))
    return (
        f"{lanes} lanes, {patches.bands} bands of {patches.strips}, {shape}, stride {step.stride}, "
        f"{weights}/4 bits, {size[0]} x {size[1]} of {read.width}, sum {int(step.shortcut is not None)}, groups of {group}"
    )
