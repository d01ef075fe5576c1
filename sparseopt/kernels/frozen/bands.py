"""How images are cut into bands for inference, so that even a single one fills whole vectors (see `csrc/bands.h`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparseopt.kernels.frozen.description import Step

SPARE = 1.15  # one sample at a time stays in the cache, which is worth this much more arithmetic


@dataclass(frozen=True)
class Extent:
    """Size of a value of a region; `scale` is the product of the strides between the region's input and it."""

    channels: int
    height: int
    width: int
    scale: int


Extents = Sequence[Extent]  # by the number of the value


def band_rows(extents: Extents, bands: int) -> list[int]:
    """Rows of one band of every value.

    A convolution of stride s reads, for row h of a band, rows around h * s of the same band: where its output has r rows a band,
    its input has s * r. So the coarsest image decides, and finer ones have as many times its rows as they are finer.
    """
    if bands == 1:
        return [extent.height for extent in extents]
    coarsest = max(extent.scale for extent in extents)
    unit = max(-(-extent.height * extent.scale // (bands * coarsest)) for extent in extents)
    return [unit * coarsest // extent.scale for extent in extents]


def choose_bands(extents: Extents, samples: int, lanes: int) -> int:
    """The largest number of bands that computes hardly more rows and lanes that hold no image than any other number."""
    counts = [1 << power for power in range(lanes.bit_length())]
    costs = {bands: -(-samples * bands // lanes) * vectors(extents, bands) for bands in counts}
    return max(bands for bands, cost in costs.items() if cost <= SPARE * min(costs.values()))


def vectors(extents: Extents, bands: int) -> int:
    """How many vectors all values take."""
    rows = band_rows(extents, bands)
    return sum(each * extent.width * extent.channels for each, extent in zip(rows, extents, strict=True))


def waste(extents: Extents, bands: int) -> float:
    """Vectors that all values take, in units of what the images alone would fill."""
    return bands * vectors(extents, bands) / sum(each.height * each.width * each.channels for each in extents)


def halo(readers: Iterable[Step], bands: int) -> int:
    """Rows beyond its own that a band is read with: the padding, and with several bands what a kernel reaches below."""
    wanted = [0]
    for step in readers:
        wanted += step.padding
        if bands > 1:
            wanted.append(step.kernel[0] - step.padding[0] - step.stride)
    return max(wanted)
