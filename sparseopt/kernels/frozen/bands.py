"""How images are cut into bands and strips for inference, so that even a single one fills whole vectors (see `csrc/bands.h`)."""

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


@dataclass(frozen=True)
class Patches:
    """What an image is cut into: `bands` from top to bottom, each into `strips` from left to right."""

    bands: int
    strips: int = 1

    @property
    def count(self) -> int:
        return self.bands * self.strips

    def sizes(self, extents: Extents) -> list[tuple[int, int]]:
        """Rows and columns of one patch of every value."""
        rows = _pieces(self.bands, [(extent.height, extent.scale) for extent in extents])
        columns = _pieces(self.strips, [(extent.width, extent.scale) for extent in extents])
        return list(zip(rows, columns, strict=True))

    def halo(self, readers: Iterable[Step]) -> int:
        """Rows and columns beyond its own that a patch is read with: the padding, and what a kernel reaches of the next one."""
        wanted = [0]
        for step in readers:
            wanted += step.padding
            for pieces, kernel, padding in zip(
                (self.bands, self.strips), step.kernel, step.padding, strict=True
            ):
                if pieces > 1:
                    wanted.append(kernel - padding - step.stride)
        return max(wanted)


def _pieces(count: int, sizes: Sequence[tuple[int, int]]) -> list[int]:
    """How long one of so many pieces of every value is, from its size and scale.

    A convolution of stride s reads, for row h of a band, rows around h * s of the same band: where its output has r rows a band,
    its input has s * r. So the coarsest image decides, and finer ones have as many times its rows as they are finer.
    """
    if count == 1:
        return [size for size, _ in sizes]
    coarsest = max(scale for _, scale in sizes)
    unit = max(-(-size * scale // (count * coarsest)) for size, scale in sizes)
    return [unit * coarsest // scale for _, scale in sizes]


def choose_patches(extents: Extents, samples: int, lanes: int) -> Patches:
    """As many patches as compute hardly more vectors and lanes that hold no image than any other number; of these, bands."""
    counts = [1 << power for power in range(lanes.bit_length())]
    kinds = [Patches(bands, strips) for bands in counts for strips in counts if bands * strips <= lanes]
    costs = {each: -(-samples * each.count // lanes) * vectors(extents, each) for each in kinds}
    good = [each for each, cost in costs.items() if cost <= SPARE * min(costs.values())]
    return max(good, key=lambda each: (each.count, each.bands))


def vectors(extents: Extents, patches: Patches) -> int:
    """How many vectors all values take."""
    sizes = patches.sizes(extents)
    return sum(
        rows * columns * extent.channels for (rows, columns), extent in zip(sizes, extents, strict=True)
    )


def waste(extents: Extents, patches: Patches) -> float:
    """Vectors that all values take, in units of what the images alone would fill."""
    alone = sum(each.height * each.width * each.channels for each in extents)
    return patches.count * vectors(extents, patches) / alone
