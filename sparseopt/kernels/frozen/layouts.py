"""Layouts of a region: lanes, patches, and where the images of a batch are cut into fewer bands as they become coarser.

A ResNet-50's images have 56, 28, 14 and 7 rows. In eight bands all but the first would have rows that no image has, an eighth
of the work. Where there are several samples, the second kind is cut into four bands with two samples in a vector, the third
into two with four samples, the last not at all: no row is computed in vain, and what is worked on at a time stays as large as
one sample's.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from sparseopt.kernels.frozen.bands import Extents, Patches, choose_patches, waste
from sparseopt.kernels.frozen.description import Convs, ConvStep, reads
from sparseopt.kernels.frozen.groups import NARROW, WIDE, groupable, read_as_runs, with_sums

IN_VAIN = 1.03  # of the work, that is not worth another cut
CACHE = 2**19  # bytes of a value that stay near


@dataclass(frozen=True)
class Cut:
    """From step `first` on, images have so many bands."""

    first: int
    bands: int


@dataclass(frozen=True)
class Layout:
    """Vectors of `lanes` floats; a sample has `bands` times `strips` of them (see `csrc/bands.h`), until a cut says
    otherwise. Cuts are between bands alone. `grouped`: the values whose columns lie in groups, narrow
    ones where there are at most `narrow` columns (see `groups.py`)."""

    lanes: int
    bands: int
    cuts: tuple[Cut, ...] = ()
    strips: int = 1
    grouped: tuple[int, ...] = ()
    narrow: int = 0

    def widest_group(self, columns: int) -> int:
        return NARROW if columns <= self.narrow else WIDE


@dataclass(frozen=True)
class LayoutSegment:
    """Steps from `first` to `last` - 1, which run with images cut in one way. `values`: all that they read and make."""

    first: int
    last: int
    patches: Patches
    values: tuple[int, ...]

    def sizes(self, extents: Extents) -> dict[int, tuple[int, int]]:
        """Rows and columns of one patch of each value."""
        found = self.patches.sizes([extents[value] for value in self.values])
        return dict(zip(self.values, found, strict=True))


def segments(convs: Convs, layout: Layout) -> list[LayoutSegment]:
    cuts = [Cut(0, layout.bands), *layout.cuts, Cut(len(convs.steps), 0)]
    return [
        LayoutSegment(
            one.first,
            following.first,
            Patches(one.bands, layout.strips),
            _values(convs, one.first, following.first),
        )
        for one, following in pairwise(cuts)
    ]


def handed_on(convs: Convs, first: int) -> list[int]:
    """The values that are there before step `first` and are still needed."""
    made = len(convs.inputs) + first
    return [value for value, uses in enumerate(convs.uses(first)[:made]) if uses]


def layouts(convs: Convs, extents: Extents, samples: int, lanes: int) -> list[Layout]:
    """Those worth trying for so many samples."""
    if not in_step(convs, extents):
        return [Layout(lanes, 1)]
    patches = choose_patches(extents, samples, lanes)
    plain = Layout(lanes, patches.bands, strips=patches.strips)
    cut = _with_cuts(convs, extents, lanes) if 2 * samples >= lanes else None
    found = [plain] if cut is None else [cut, plain]
    return [replace(each, grouped=_far(convs, extents, each)) for each in found]


def narrower(layout: Layout, extents: Extents) -> list[Layout]:
    """The same with narrow groups in all but the finest images, and everywhere."""
    widths = sorted({extents[value].width for value in layout.grouped})
    return [replace(layout, narrow=narrow) for narrow in widths[-2:]]


def _far(convs: Convs, extents: Extents, layout: Layout) -> tuple[int, ...]:
    """The values that do not stay in the cache, and that 1 x 1 convolutions read; none where images are cut into strips."""
    if layout.strips > 1:
        return ()
    runs, found = read_as_runs(convs) & groupable(convs), set[int]()
    for segment in segments(convs, layout):
        for value, (rows, columns) in segment.sizes(extents).items():
            if value in runs and 4 * extents[value].channels * rows * columns * layout.lanes > CACHE:
                found.add(value)
    return with_sums(convs, found)


def in_step(convs: Convs, extents: Extents) -> bool:
    """Whether every sum adds values whose bands begin at the same rows. Inputs of different sizes may prevent it."""
    return all(
        extents[step.shortcut].scale * step.shortcut_stride == extents[step.output].scale
        for step in convs.steps
        if isinstance(step, ConvStep) and step.shortcut is not None
    )


def _with_cuts(convs: Convs, extents: Extents, lanes: int) -> Layout | None:
    """As many bands as fit without rows in vain, fewer from stage to stage; None if one cut serves all."""
    cuts: list[Cut] = []
    stages = [*_stages(convs, extents), len(convs.steps)]
    for first, last in pairwise(stages):
        since = cuts[-1] if cuts else Cut(0, lanes)
        bands, begin = since.bands, since.first
        while bands > 1 and _in_vain([extents[each] for each in _values(convs, begin, last)], bands):
            bands, begin = bands // 2, first
        if not cuts or bands != since.bands:
            cuts.append(Cut(first, bands))
    found = Layout(lanes, cuts[0].bands, tuple(cuts[1:]))
    return found if found.cuts and _fit(convs, extents, found) else None


def _in_vain(extents: Extents, bands: int) -> bool:
    return waste(extents, Patches(bands)) > IN_VAIN


def _fit(convs: Convs, extents: Extents, layout: Layout) -> bool:
    """Whether the bands before every cut make up those behind it."""
    parts = segments(convs, layout)
    return all(
        one.sizes(extents)[value][0] * one.patches.bands
        == following.sizes(extents)[value][0] * following.patches.bands
        for one, following in pairwise(parts)
        for value in handed_on(convs, following.first)
    )


def _stages(convs: Convs, extents: Extents) -> list[int]:
    """The first step, and before every step that makes coarser images than there were the last one that one value reaches."""
    found, coarsest, alone = [0], 1, 0
    for number, step in enumerate(convs.steps):
        if number and len(handed_on(convs, number)) == 1:
            alone = number
        if extents[step.output].scale > coarsest:
            coarsest = extents[step.output].scale
            if alone > found[-1]:
                found.append(alone)
    return found


def _values(convs: Convs, first: int, last: int) -> tuple[int, ...]:
    used = {value for step in convs.steps[first:last] for value in (*reads(step), step.output)}
    return tuple(sorted(used.union(range(len(convs.inputs)) if first == 0 else ())))
