"""Which values of a region lie in groups of columns (see `csrc/bands.h`), and how wide these are.

What a tile of a 1 x 1 convolution reads of all channels is one run of memory, if its columns are a group. Images that do not fit
the cache are read twice as fast so. What is read row by row lies in rows: inputs, outputs that are images, what is pooled, and
shortcuts that skip columns.
"""

from collections.abc import Iterable

from sparseopt.kernels.frozen.description import Convs, ConvStep, PoolStep
from sparseopt.kernels.native.network import TileSize


def read_in_rows(convs: Convs) -> set[int]:
    """The values that cannot lie in groups."""
    pooled = {step.input for step in convs.steps if isinstance(step, PoolStep)}
    skipped = {
        step.shortcut
        for step in convs.steps
        if isinstance(step, ConvStep) and step.shortcut is not None and step.shortcut_stride != 1
    }
    images = {end.value for end in convs.ends if not end.pooled}
    return {*range(len(convs.inputs)), *pooled, *skipped, *images}


def group_of(columns: int, tiles: Iterable[TileSize]) -> int:
    """Columns of a group of a value so wide: those of a tile of one row, with the fewest beyond the image, and the widest so."""
    widths = {tile.columns for tile in tiles if tile.rows == 1}
    return min(widths, key=lambda width: (-(-columns // width) * width, -width))
