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
# Bytes of input that a block of channels has, about a first-level cache.
BLOCKS = (12_000, 24_000, 32_000, 40_000, 48_000, 96_000)
WIDE = 14  # vectors of a tile that need more than 16 registers
FINALISTS = 5  # ways that take turns, at most
CLOSE = 1.4  # times the shortest time that is not worth a turn
TURNS = 4
SECONDS = 1e-3  # that one of them is tried in all, if it takes less
FEWEST, MOST = 2, 20  # runs


@dataclass(frozen=True)
class Way:
    """Tile, the input channels of a block (0: all of them), and whether what a tile reads of one is copied together."""

    tile: TileSize
    block: int
    copies: bool
    seconds: float = 0.0

    @property
    def numbers(self) -> tuple[int, int, int]:
        """As the library and the file of measurements have it."""
        return self.tile.number, self.block, int(self.copies)

    def __str__(self) -> str:
        blocks = f", blocks of {self.block} channels" if self.block else ""
        return f"{self.tile.rows} x {self.tile.columns} tiles{blocks}{', copied' if self.copies else ''}"


Groups = tuple[int, int]
"""Columns of a group in what a layer reads and in what it makes; 0: there are none."""


def ways(step: ConvStep, lanes: int, size: tuple[int, int], groups: Groups = (0, 0)) -> list[Way]:
    """The ways that are worth trying for a layer whose output has so many rows and columns a patch."""
    tiles = [
        tile
        for tile in operators().tiles(lanes)
        if tile.vectors <= WIDE or operators().lanes() == 16  # AVX-512 has 32 registers
    ]
    wasted = {tile: _waste(tile, *size, groups[1]) for tile in tiles}
    return [
        Way(tile, block, copies)
        for tile in tiles
        if wasted[tile] <= WASTE * min(wasted.values())
        for block, copies in _blocks(step, tile, lanes, groups[0])
    ]


def _waste(tile: TileSize, rows: int, width: int, group: int) -> float:
    """Tiles end where groups do."""
    whole, rest = divmod(width, group or width)
    across = whole * ceil((group or width) / tile.columns) + ceil(rest / tile.columns)
    return ceil(rows / tile.rows) * tile.rows * across * tile.columns / (rows * width)


def _blocks(step: ConvStep, tile: TileSize, lanes: int, group: int) -> Iterator[tuple[int, bool]]:
    """Channels of a block, and whether it is copied."""
    run = (step.kernel, step.stride) == ((1, 1), 1)  # what a tile reads lies together where there are groups
    direct = step.stride in tile.direct and (group == 0 or run)
    if direct:
        yield 0, False
    channels, kernel_rows, kernel_columns = step.weight.shape[1:]
    rows = (tile.rows - 1) * step.stride + kernel_rows
    window = (tile.columns - 1) * step.stride + kernel_columns
    # Columns that no weight reads are not copied.
    columns = ceil(window / step.stride) * min(step.stride, kernel_columns)
    sizes = {min(channels, size // (rows * columns * lanes * 4)) for size in BLOCKS}
    together = direct and (tile.rows, tile.columns) == (1, group)
    fitting = sorted(size for size in sizes if size >= min(4, channels))
    if direct:
        yield from ((size, False) for size in fitting if size < channels)
    if not together:
        # Large kernels fit no cache, and run all the same.
        yield from ((size, True) for size in (fitting if fitting or direct else (max(1, *sizes),)))


def tune(program: FrozenProgram, steps: tuple[Step, ...], known: Measurements) -> list[Way]:
    """Choose the fastest way of every step, and return them with their times for the samples that run together there."""
    return [
        _tune_layer(program, number, step, known)
        if isinstance(step, ConvStep)
        else Way(operators().tiles(program.layout.lanes)[0], 0, False, program.network.time(number, FEWEST))
        for number, step in enumerate(steps)
    ]


def _tune_layer(program: FrozenProgram, number: int, step: ConvStep, known: Measurements) -> Way:
    lanes, size, groups = program.layout.lanes, program.made[number], program.groups[number]
    candidates = ways(step, lanes, size, groups)
    key = _key(
        step, lanes, program.patches(number), program.extents[step.input], size, groups, program.recut(number)
    )
    best = _remembered(known.get(key), candidates)
    if best is None:
        best = _fastest(program, number, candidates)
        known.put(key, best.numbers, best.seconds)
    program.network.choose(number, *best.numbers)
    return best


def _remembered(found: tuple[tuple[int, ...], float] | None, candidates: list[Way]) -> Way | None:
    """What was measured, if it is among what could be."""
    for way in candidates:
        if found is not None and way.numbers == found[0]:
            return replace(way, seconds=found[1])
    return None


def _fastest(program: FrozenProgram, number: int, candidates: list[Way]) -> Way:
    """Every way is tried once; those that are not far behind take turns, because a moment may be a bad one for one of them."""
    network = program.network

    def timed(way: Way, seconds: float) -> Way:
        network.choose(number, *way.numbers)
        runs = int(min(MOST, max(1, seconds / max(way.seconds, 1e-9))))
        return replace(way, seconds=min(after_the_one_before() for _ in range(runs)))

    def after_the_one_before() -> float:
        """The caches then hold what they hold in the network: the layer's input in part, and none of its weights."""
        if number:
            network.time(number - 1, 1)
        return network.time(number, 1)

    tried = sorted((timed(way, 0.0) for way in candidates), key=lambda way: way.seconds)
    close = [way for way in tried[:FINALISTS] if way.seconds <= CLOSE * tried[0].seconds]
    for _ in range(TURNS if len(close) > 1 else 0):
        again = [timed(way, SECONDS / TURNS) for way in close]
        close = [
            replace(way, seconds=min(way.seconds, new.seconds)) for way, new in zip(close, again, strict=True)
        ]
    return min(close, key=lambda way: way.seconds)


def _key(
    step: ConvStep,
    lanes: int,
    patches: Patches,
    read: Extent,
    size: tuple[int, int],
    groups: Groups,
    recut: int,
) -> str:
    """What the time of a layer follows from. Numbers of weights are alike within a fifth."""
    weights = round(4 * log2(max(1, len(step.weight.values))))
    shape = "x".join(map(str, step.weight.shape))
    return (
        f"{lanes} lanes, {patches.bands} bands of {patches.strips}, {shape}, stride {step.stride}, "
        f"{weights}/4 bits, {size[0]} x {size[1]} of {read.width}, sum {int(step.shortcut is not None)}, groups {groups}, "
        f"recut {recut}"
    )
