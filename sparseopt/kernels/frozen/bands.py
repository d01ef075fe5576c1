"""How images are cut into bands for inference, so that even a single one fills whole vectors (see `csrc/bands.h`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparseopt.kernels.match.graph import Activation, Conv

Value = Activation | Conv

SPARE = 1.15  # one sample at a time stays in the cache, which is worth this much more arithmetic


@dataclass(frozen=True)
class Extent:
    """Size of a value of a region; `scale` is the product of the strides between the region's input and it."""

    channels: int
    height: int
    width: int
    scale: int


Extents = Mapping[Value, Extent]


def band_rows(extents: Extents, bands: int) -> dict[Value, int]:
    """Rows of one band of every value.

    A convolution of stride s reads, for row h of a band, rows around h * s of the same band: where its output has r rows a band,
    its input has s * r. So the coarsest image decides, and finer ones have as many times its rows as they are finer.
    """
    if bands == 1:
        return {value: extent.height for value, extent in extents.items()}
    coarsest = max(extent.scale for extent in extents.values())
    unit = max(-(-extent.height * extent.scale // (bands * coarsest)) for extent in extents.values())
    return {value: unit * coarsest // extent.scale for value, extent in extents.items()}


def choose_bands(extents: Extents, samples: int, lanes: int) -> int:
    """The largest number of bands that computes hardly more rows and lanes that hold no image than any other number."""
    counts = [1 << power for power in range(lanes.bit_length())]
    costs = {bands: -(-samples * bands // lanes) * vectors(extents, bands) for bands in counts}
    return max(bands for bands, cost in costs.items() if cost <= SPARE * min(costs.values()))


def vectors(extents: Extents, bands: int) -> int:
    """How many vectors all values take."""
    rows = band_rows(extents, bands)
    return sum(rows[value] * extent.width * extent.channels for value, extent in extents.items())


def halo(readers: Iterable[Conv], bands: int) -> int:
    """Rows beyond its own that a band is read with: the padding, and with several bands what a kernel reaches below."""
    wanted = [0]
    for conv in readers:
        assert not isinstance(conv.module.padding, str)
        wanted += conv.module.padding
        if bands > 1:
            wanted.append(conv.module.kernel_size[0] - conv.module.padding[0] - conv.module.stride[0])
    return max(wanted)
