"""Which values of a region lie in groups of columns (see `csrc/bands.h`), and how wide these are.

What a tile of a 1 x 1 convolution reads of all channels is one run of memory, if its columns are a group. Images that do not fit
the cache are read twice as fast so; kernels of other sizes have to copy what they read of such an image. What is read row by row
lies in rows: inputs, outputs that are images, what is pooled, and shortcuts that skip columns.

A weight that has been read serves all columns of a wide group; of a narrow one twice as many channels fit the first-level cache,
so that sums wait for the next block half as often (`csrc/tile.h`). Coarse images have many channels and few weights for each:
there narrow groups may be faster, how much depends on the CPU, and is measured.
"""

from collections.abc import Collection, Iterable

from sparseopt.kernels.frozen.description import Convs, ConvStep, PoolStep
from sparseopt.kernels.native.network import TileSize

WIDE, NARROW = 14, 8
"""The most columns of a group."""


def groupable(convs: Convs) -> set[int]:
    """The values that can lie in groups."""
    sums = [step for step in convs.steps if isinstance(step, ConvStep) and step.shortcut is not None]
    pooled = {step.input for step in convs.steps if isinstance(step, PoolStep)}
    skipped = {step.shortcut for step in sums if step.shortcut_stride != 1}
    images = {end.value for end in convs.ends if not end.pooled}
    return {step.output for step in convs.steps} - pooled - skipped - images


def read_as_runs(convs: Convs) -> set[int]:
    """The values that a 1 x 1 convolution reads at every position."""
    return {step.input for step in convs.steps if step.kernel == (1, 1) and step.stride == 1}


def with_sums(convs: Convs, grouped: Collection[int]) -> tuple[int, ...]:
    """These values, and those they are added to or made of: a sum then takes the place of what it adds."""
    can, found = groupable(convs), set(grouped)
    sums = [
        {step.shortcut, step.output}
        for step in convs.steps
        if isinstance(step, ConvStep) and step.shortcut is not None
    ]
    for _ in sums:
        found |= {value for pair in sums if pair & found for value in pair if value in can}
    return tuple(sorted(found & can))


def group_of(columns: int, tiles: Iterable[TileSize], most: int) -> int:
    """Columns of a group of a value so wide: those of a tile of one row, with the fewest beyond the image, and the widest so."""
    widths = {tile.columns for tile in tiles if tile.rows == 1 and tile.columns <= most}
    return min(widths, key=lambda width: (-(-columns // width) * width, -width))
