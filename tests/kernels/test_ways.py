"""A frozen region gives the same bits in every layout and in every way its layers can run, on any machine."""

import hashlib
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so
from sparseopt.kernels.frozen.chain import FrozenChain
from sparseopt.kernels.frozen.description import Convs
from sparseopt.kernels.frozen.groups import group_of, groupable
from sparseopt.kernels.frozen.layouts import Cut, Layout, layouts, narrower
from sparseopt.kernels.frozen.program import FrozenProgram, extents_of
from sparseopt.kernels.frozen.region import FrozenRegion
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.measurements import Measurements
from sparseopt.kernels.native.network import TileSize

BANDS = [
    Layout(lanes, bands) for lanes, bands in ((4, 1), (4, 4), (8, 2), (8, 8), (16, 1), (16, 8), (16, 16))
]
STRIPS = [
    Layout(lanes, bands, strips=strips)
    for lanes, bands, strips in ((4, 2, 2), (8, 1, 8), (8, 2, 2), (16, 8, 2), (16, 4, 4), (16, 1, 4))
]


GROUPS = [Layout(lanes, bands) for lanes, bands in ((4, 1), (4, 4), (8, 2), (8, 8), (16, 1), (16, 16))]


class Net(nn.Module):
    """Kernels of several sizes, both strides, an identity and a projection shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.same = nn.Conv2d(3, 9, 7, 2, 3), nn.Conv2d(9, 9, 3, padding=1)
        self.wide, self.narrow = nn.Conv2d(9, 21, 1), nn.Conv2d(21, 9, 1)
        self.down, self.projection = nn.Conv2d(9, 13, 3, 2, 1), nn.Conv2d(9, 13, 1, 2)
        self.last = nn.Conv2d(13, 8, (3, 5), padding=(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.same(x) + x)
        x = torch.relu(self.narrow(torch.relu(self.wide(x))) + x)
        return self.last(torch.relu(self.down(x) + self.projection(x)))


def region_of(engine: so.kernels.Engine) -> FrozenRegion:
    return next(each for each in engine.program.children() if isinstance(each, FrozenRegion))


@pytest.mark.parametrize("size", [(29, 33), (8, 57)])
@pytest.mark.parametrize(
    ("layout", "grouped"),
    [*((each, False) for each in (*BANDS, *STRIPS)), *((each, True) for each in GROUPS)],
    ids=str,
)
def test_every_tile_and_every_block_gives_the_same_bits(
    layout: Layout, grouped: bool, size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    model = Net()
    engine = so.compile_inference(model, so.sparsify(model, 0.6, distribution="uniform"))
    x = torch.randn(3, 3, *size)
    content = region_of(engine).content
    expected = FrozenRegion(content, (Layout(4, 1),))(x)[0]
    with torch.no_grad():
        torch.testing.assert_close(expected, model(x))
    region = FrozenRegion(content, (in_groups(layout, content) if grouped else layout,))
    network = region.prepared((x,)).program.network
    tiles = operators().tiles(layout.lanes)
    assert {(2, 4), (1, 7), (4, 2)} <= {(tile.rows, tile.columns) for tile in tiles}
    for tile, block, copies in itertools.product(tiles, (0, 1, 2, 4), (0, 1)):
        for number, step in enumerate(region.content.learned()):
            direct = step.stride in tile.direct
            network.choose(number, tile.number, block, copies if direct else 1)
        assert torch.equal(region(x)[0], expected), (tile, block, copies)


def in_groups(layout: Layout, content: Convs, narrow: int = 0) -> Layout:
    """Whatever can lie in groups does."""
    return replace(layout, grouped=tuple(sorted(groupable(content))), narrow=narrow)


def same_on_several_threads(content: Convs, layout: Layout, x: Tensor) -> None:
    expected = FrozenRegion(content, (Layout(8, 1),))(x)[0]
    region = FrozenRegion(content, (layout,))
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            assert torch.equal(region(x)[0], expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("layout", STRIPS, ids=str)
@pytest.mark.parametrize(("size", "stride"), [((40, 64), 1), ((17, 9), 1), ((33, 47), 2)])
def test_strips_give_the_same_bits_on_several_threads(
    layout: Layout, size: tuple[int, int], stride: int
) -> None:
    """Where a kernel reaches further than the next strip, too."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 24, 7, stride, 3), nn.ReLU(), nn.Conv2d(24, 24, (3, 5), padding=(1, 2))),
        *(nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(24, 8, 3, padding=1)),
    )
    engine = so.compile_inference(model, so.sparsify(model, 0.5, distribution="uniform"))
    content = region_of(engine).content
    for samples in (1, 2, 5):
        same_on_several_threads(content, layout, torch.randn(samples, 3, *size))


@pytest.mark.parametrize("layout", GROUPS, ids=str)
@pytest.mark.parametrize("size", [(29, 33), (40, 116)])
def test_groups_of_columns_give_the_same_bits_on_several_threads(
    layout: Layout, size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    model = Net()
    engine = so.compile_inference(model, so.sparsify(model, 0.6, distribution="uniform"))
    content = region_of(engine).content
    for samples, narrow in ((1, 0), (2, size[1]), (5, size[1] // 2)):  # none, all, the coarser ones
        same_on_several_threads(content, in_groups(layout, content, narrow), torch.randn(samples, 3, *size))


def test_a_mean_over_groups_of_columns_is_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 9, 3, padding=1), nn.ReLU(), nn.Conv2d(9, 20, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 4)),
    )
    engine = so.compile_inference(model, so.sparsify(model, 0.6, distribution="uniform"))
    content, x = region_of(engine).content, torch.randn(3, 3, 21, 30)
    in_rows = FrozenRegion(content, (Layout(8, 4),))(x)[0]
    with torch.no_grad():
        torch.testing.assert_close(in_rows, model[:6](x))
    assert torch.equal(FrozenRegion(content, (in_groups(Layout(8, 4), content),))(x)[0], in_rows)


def test_what_1_x_1_convolutions_read_lies_in_groups_where_it_does_not_fit_the_cache() -> None:
    """Values: the image, 64 channels, 16 made of them by 1 x 1, a sum with what they were made of, 16 by 3 x 3, the end."""

    class Bottleneck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.short = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
            self.narrow, self.wide = nn.Conv2d(64, 16, 1), nn.Conv2d(16, 64, 3, padding=1)
            self.again, self.last = nn.Conv2d(64, 16, 1), nn.Conv2d(16, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.stem(x))
            short = torch.relu(self.short(x))
            x = torch.relu(self.wide(torch.relu(self.narrow(x))) + short)
            return self.last(torch.relu(self.again(x)))

    model = Bottleneck()
    engine = so.compile_inference(model, so.sparsify(model, 0.6, distribution="uniform"))
    content = region_of(engine).content
    made = {step.name: step.output for step in content.learned()}

    def found(side: int) -> Layout:
        (layout,) = layouts(content, extents_of(content, [(side, side)]), 1, 8)
        return layout

    assert found(32).grouped == ()  # 64 channels of 32 x 32: a quarter of a megabyte
    assert set(found(64).grouped) == {
        made[name] for name in ("stem", "short", "wide")
    }  # a sum lies where `short` was
    in_rows, in_groups = FrozenRegion(content, (Layout(8, 8),)), FrozenRegion(content, (found(64),))
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(in_groups(x)[0], in_rows(x)[0])
    groups = in_groups.prepared((x,)).program.groups
    reads = {step.name: each for step, each in zip(content.learned(), groups, strict=True)}
    assert reads["narrow"] == (8, 0)
    assert reads["last"] == (0, 0)


def test_groups_are_tried_wide_narrow_in_all_but_the_finest_images_and_narrow() -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 16, 1), nn.ReLU()),
        *(nn.Conv2d(16, 256, 3, 2, 1), nn.ReLU(), nn.Conv2d(256, 16, 1), nn.ReLU()),
        *(nn.Conv2d(16, 1024, 3, 2, 1), nn.ReLU(), nn.Conv2d(1024, 16, 1), nn.ReLU(), nn.Conv2d(16, 8, 3)),
    )
    content = region_of(so.compile_inference(model, so.sparsify(model, 0.9, distribution="uniform"))).content
    extents = extents_of(content, [(112, 112)])
    (wide,) = layouts(content, extents, 1, 8)
    tried = [wide, *narrower(wide, extents)]
    assert [each.narrow for each in tried] == [0, 56, 112]
    groups = [
        [
            read
            for step, (read, _) in zip(
                content.learned(), FrozenProgram(content, extents, each).groups, strict=True
            )
            if step.kernel == (1, 1)
        ]
        for each in tried
    ]
    widest = max(
        tile.columns for tile in operators().tiles(8) if tile.rows == 1
    )  # a level may have none of 14
    assert groups == ([[14, 14, 14], [14, 8, 7], [8, 8, 7]] if widest >= 14 else [[8, 8, 7]] * 3)


def test_an_image_that_comes_in_is_read_in_rows() -> None:
    model = nn.Sequential(nn.Conv2d(64, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3))
    content = region_of(so.compile_inference(model, so.sparsify(model, 0.6, distribution="uniform"))).content
    assert layouts(content, extents_of(content, [(64, 64)]), 1, 8) == [Layout(8, 8)]


@pytest.mark.parametrize(
    ("columns", "most", "group"),
    [
        *(
            (112, 14, 14),
            (28, 14, 14),
            (7, 14, 7),
            (16, 14, 8),
            (24, 14, 8),
            (12, 14, 4),
            (49, 14, 7),
            (3, 14, 4),
        ),
        *((56, 8, 8), (28, 8, 7), (14, 8, 7), (12, 8, 4)),
    ],
)
def test_groups_are_as_wide_as_tiles(columns: int, most: int, group: int) -> None:
    sizes = ((1, 4), (2, 4), (1, 7), (1, 8), (4, 2), (2, 7), (1, 14))
    tiles = [TileSize(0, *size, direct=(1,)) for size in sizes]
    assert group_of(columns, tiles, most) == group


def test_a_single_small_image_fills_sixteen_lanes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1))
    content = region_of(so.compile_inference(model, so.sparsify(model, 0.6, distribution="uniform"))).content
    small = extents_of(content, [(16, 16)])
    assert layouts(content, small, 1, 16) == [Layout(16, 8, strips=2)]  # 16 bands would be of half a row
    assert layouts(content, small, 1, 8) == [Layout(8, 8)]
    assert layouts(content, extents_of(content, [(64, 16)]), 1, 16) == [Layout(16, 16)]


class Stages(nn.Module):
    """As a ResNet begins and goes on: a max pooling, and images of 1/4, 1/8 and 1/16 of the height, each with a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool = nn.Conv2d(3, 9, 7, 2, 3), nn.MaxPool2d(3, 2, 1)
        self.first = nn.Conv2d(9, 9, 3, padding=1)
        self.down, self.projection = nn.Conv2d(9, 13, 3, 2, 1), nn.Conv2d(9, 13, 1, 2)
        self.last, self.short = nn.Conv2d(13, 7, 3, 2, 1), nn.Conv2d(13, 7, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.stem(x)))
        x = torch.relu(self.first(x) + x)
        x = torch.relu(self.down(x) + self.projection(x))
        return torch.relu(self.last(x) + self.short(x))


# Steps: stem, pooling, first, down or projection, ... Images of 112 rows have 28, 14 and 7 behind the pooling.
CUT = [
    Layout(4, 4, (Cut(3, 2), Cut(5, 1))),
    Layout(8, 4, (Cut(3, 2), Cut(5, 1))),
    Layout(8, 4, (Cut(3, 1),)),
    Layout(16, 16, (Cut(2, 8), Cut(3, 4), Cut(5, 1))),
    Layout(16, 16, (Cut(3, 2), Cut(5, 1))),
    Layout(16, 16, (Cut(3, 1),)),
]


@pytest.mark.parametrize("layout", CUT, ids=str)
def test_fewer_bands_behind_a_cut_give_the_same_bits(layout: Layout) -> None:
    torch.manual_seed(0)
    model = Stages()
    engine = so.compile_inference(model, so.sparsify(model, 0.6, distribution="uniform"))
    content = region_of(engine).content
    height = 448 if layout.bands == 16 else 112  # so that bands before a cut make up those behind it
    together = layout.lanes // layout.cuts[-1].bands
    for samples in (1, 2, 3, together, together + 3):
        x = torch.randn(samples, 3, height, 40)
        with torch.no_grad():
            torch.testing.assert_close(engine(x), model(x))
        same_on_several_threads(content, layout, x)
        same_on_several_threads(content, in_groups(layout, content), x)


def test_images_of_a_batch_are_cut_into_fewer_bands_as_they_become_coarser() -> None:
    torch.manual_seed(0)
    model = Stages()
    content = region_of(so.compile_inference(model, so.sparsify(model, 0.6, distribution="uniform"))).content
    extents = extents_of(content, [(112, 112)])
    assert layouts(content, extents, 8, 8)[0] == Layout(8, 8, (Cut(1, 4), Cut(3, 2), Cut(5, 1)))
    assert layouts(content, extents, 4, 4)[0] == Layout(4, 4, (Cut(3, 2), Cut(5, 1)))
    assert [each.cuts for each in layouts(content, extents, 3, 8)] == [()]  # lanes would be empty
    even = extents_of(content, [(256, 112)])  # 64, 32 and 16 rows: eight bands for all of them
    assert [each.cuts for each in layouts(content, even, 8, 8)] == [()]


def test_wide_tiles_run_without_wide_registers() -> None:
    """What is meant for AVX-512 can be tested anywhere."""
    sizes = {(tile.rows, tile.columns) for tile in operators().tiles(4)}
    assert {(4, 4), (2, 14), (4, 7)} <= sizes


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("samples", [1, 3, 5, 40, 77])
def test_linear_layers_in_any_number_of_vectors(lanes: int, samples: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(301, 400), nn.ReLU(), nn.Linear(400, 11))
    engine = so.compile_inference(model, so.sparsify(model, 0.9))
    x = torch.randn(samples, 301)
    chain = next(each for each in engine.program.children() if isinstance(each, FrozenChain))
    expected = chain.make(4, 1, 0).run(x)
    with torch.no_grad():
        torch.testing.assert_close(expected, model(x))
    for vectors, block in itertools.product((0, 1, 2, 4, 8), (0, 7, 256)):
        assert torch.equal(chain.make(lanes, vectors, block).run(x), expected)


def test_measurements_are_kept_and_doubted(tmp_path: Path) -> None:
    known = Measurements(tmp_path / "kernels", "layers")
    known.put("a", (1, 3), 0.5)
    known.keep()
    again = Measurements(tmp_path / "kernels", "layers")
    assert again.get("a") == ((1, 3), 0.5)
    assert again.get("b") is None
    whole = (tmp_path / "kernels" / "layers").read_bytes()
    doubtful = (
        *(b"[1, 2]", b"no json", b'{"a": [[0, 3], "x"]}', b'{"a": [[0, "x"], 0.5]}', b'{"a": [1, 3, 0.5]}'),
        *(b'{"a": [[0, true], 0.5]}', b'{"a": [[0, 3], NaN]}', b'{"a": {"0": 3}}'),
    )
    for content in (b"", whole[:-1], *(each + hashlib.sha256(each).digest() for each in doubtful)):
        (tmp_path / "kernels" / "layers").write_bytes(content)
        assert Measurements(tmp_path / "kernels", "layers").get("a") is None
    good = b'{"a": [[0, 3], 0.5]}'  # as doubtful ones were written
    (tmp_path / "kernels" / "layers").write_bytes(good + hashlib.sha256(good).digest())
    assert Measurements(tmp_path / "kernels", "layers").get("a") == ((0, 3), 0.5)
    (tmp_path / "kernels" / "layers").write_bytes(whole)
    (tmp_path / "kernels").chmod(0o777)
    assert Measurements(tmp_path / "kernels", "layers").get("a") is None
