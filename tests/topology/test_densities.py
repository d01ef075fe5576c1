"""Densities and counts against the published definitions, worked by hand."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import sparseopt as so
from sparseopt.topology import active_counts
from sparseopt.topology.densities import share_out

RESNET50_BLOCKS = ((64, 3), (128, 4), (256, 6), (512, 3))


def resnet50_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"stem": (64, 3, 7, 7)}
    wide_in = 64
    for stage, (width, blocks) in enumerate(RESNET50_BLOCKS):
        for block in range(blocks):
            key = f"{stage}.{block}"
            shapes[f"{key}.1"] = (width, wide_in, 1, 1)
            shapes[f"{key}.2"] = (width, width, 3, 3)
            shapes[f"{key}.3"] = (4 * width, width, 1, 1)
            if block == 0:
                shapes[f"{key}.down"] = (4 * width, wide_in, 1, 1)
            wide_in = 4 * width
    shapes["fc"] = (1000, 2048)
    return shapes


def resnet20_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"stem": (16, 3, 3, 3)}
    wide_in = 16
    for width in (16, 32, 64):
        for block in range(3):
            shapes[f"{width}.{block}.1"] = (width, wide_in, 3, 3)
            shapes[f"{width}.{block}.2"] = (width, width, 3, 3)
            if width != wide_in:
                shapes[f"{width}.{block}.down"] = (width, wide_in, 1, 1)
            wide_in = width
    shapes["fc"] = (100, 64)
    return shapes


def erk_by_definition(shapes: dict[str, tuple[int, ...]], sparsity: float) -> dict[str, float]:
    """The fixed point of the definition, found by trying every number of dense layers in order of p."""
    raw = {n: sum(s) / math.prod(s) for n, s in shapes.items()}
    size = {n: math.prod(s) for n, s in shapes.items()}
    zeros = {n: math.floor(sparsity * size[n]) for n in shapes}
    for level in [math.inf, *sorted(set(raw.values()), reverse=True)]:
        dense = {n for n in shapes if raw[n] >= level}
        sparse = [n for n in shapes if n not in dense]
        budget = sum(size[n] - zeros[n] for n in sparse) - sum(zeros[n] for n in dense)
        epsilon = budget / sum(raw[n] * size[n] for n in sparse)
        if max(epsilon * raw[n] for n in sparse) <= 1:
            return {n: 1.0 if n in dense else epsilon * raw[n] for n in shapes}
    raise AssertionError("no fixed point")


@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9, 0.95, 0.97, 0.99])
@pytest.mark.parametrize("shapes", [resnet20_shapes(), resnet50_shapes()], ids=["resnet20", "resnet50"])
def test_erk_is_the_published_fixed_point(shapes: dict[str, tuple[int, ...]], sparsity: float) -> None:
    assert so.densities(shapes, sparsity, "erk") == pytest.approx(
        erk_by_definition(shapes, sparsity), rel=1e-12
    )


def test_erk_of_two_layers_by_hand() -> None:
    # p: 1084/235200 and 310/3000; zeros floor(0.9 N): 211680 and 2700; budget 23520 + 300 = 23820, p N: 1084 + 310.
    # eps = 23820/1394 = 17.09, eps p_b = 1.77 > 1: b is dense. eps = (23520 - 2700)/1084 = 19.21, density a = 0.0885.
    result = so.densities({"a": (300, 784), "b": (10, 300)}, 0.9, "erk")
    assert result == {"a": pytest.approx(20820 / 235200, rel=1e-12), "b": 1.0}


def test_erk_counts_the_kernel_and_er_does_not() -> None:
    shapes = {"a": (64, 32, 3, 3), "b": (64, 64, 1, 1)}
    er, erk = so.densities(shapes, 0.9, "er"), so.densities(shapes, 0.9, "erk")
    assert er["a"] / er["b"] == pytest.approx((96 / 2048) / (128 / 4096))
    assert erk["a"] / erk["b"] == pytest.approx((102 / 18432) / (130 / 4096))


@given(
    shapes=st.lists(
        st.tuples(st.integers(2, 40), st.integers(2, 40), st.integers(1, 3)), min_size=1, max_size=6
    ),
    sparsity=st.floats(0, 0.9),
    distribution=st.sampled_from(["erk", "er", "uniform"]),
)
def test_counts_are_exact_for_the_whole_network(
    shapes: list[tuple[int, ...]], sparsity: float, distribution: str
) -> None:
    named = {f"layer{i}": shape for i, shape in enumerate(shapes)}
    total = sum(math.prod(shape) for shape in shapes)
    density = so.densities(named, sparsity, distribution)
    assume(
        all(density[name] * math.prod(shape) > len(shapes) for name, shape in named.items())
    )  # no layer left empty
    counts = active_counts(named, sparsity, distribution)
    assert sum(counts.values()) == round((1 - sparsity) * total)
    for name, shape in named.items():
        assert 0 < counts[name] <= math.prod(shape)
        assert abs(counts[name] - density[name] * math.prod(shape)) <= len(shapes) + 1
        if density[name] == 1 and min(density.values()) < 1:
            assert counts[name] == math.prod(shape)


@pytest.mark.parametrize("distribution", ["erk", "er", "uniform"])
def test_a_sparsity_of_less_than_one_weight_a_layer(distribution: str) -> None:
    # 99 of 100 weights; the 0.4 and 0.6 zeros round down to none in either layer. 39.6 and 59.4: the first keeps all.
    assert active_counts({"a": (4, 10), "b": (6, 10)}, 0.01, distribution) == {"a": 40, "b": 59}


def test_uniform_shares_out_by_largest_remainder() -> None:
    # 30% of 5, 7 and 9: 1.5, 2.1, 2.7 of 6.3, so 6 weights: the remainders .7 and .5 (scaled by 6/6.3) get the odd ones.
    assert active_counts({"a": (1, 5), "b": (1, 7), "c": (1, 9)}, 0.7, "uniform") == {"a": 1, "b": 2, "c": 3}


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0.1, 30)), min_size=1, max_size=6), st.data())
def test_what_full_layers_cannot_take_goes_to_the_others_one_by_one(
    layers: list[tuple[int, float]], data: st.DataObject
) -> None:
    sizes = {str(at): size for at, (size, _) in enumerate(layers)}
    targets = {str(at): min(target, size - 0.5) for at, (size, target) in enumerate(layers)}
    total = data.draw(st.integers(0, sum(sizes.values())))
    quotas = {name: min(each * total / sum(targets.values()), sizes[name]) for name, each in targets.items()}
    expected = {name: math.floor(quota) for name, quota in quotas.items()}
    order = sorted(expected, key=lambda name: expected[name] - quotas[name])
    while sum(expected.values()) < total:
        for name in order:
            if expected[name] < sizes[name] and sum(expected.values()) < total:
                expected[name] += 1
    assert share_out(targets, sizes, total) == expected


def test_sharing_out_takes_no_longer_for_more_weights() -> None:
    """10 of 10^12 fit into the small layer; one at a time, the rest would take a day."""
    sizes = {"small": 10, "large": 10**12}
    assert share_out({"small": 5, "large": 1}, sizes, 10**12) == {"small": 10, "large": 10**12 - 10}


def test_a_mapping_fixes_layers_and_the_others_share_the_rest() -> None:
    shapes = {"a": (10, 10), "b": (10, 20), "c": (10, 30)}
    counts = active_counts(shapes, 0.5, {"a": 0.0})
    assert counts == {"a": 100, "b": 80, "c": 120}
    assert active_counts(shapes, None, {"a": 0.5, "b": 0.9, "c": 0.8}) == {"a": 50, "b": 20, "c": 60}


@pytest.mark.parametrize(
    ("sparsity", "distribution", "message"),
    [
        (1.0, "erk", r"sparsity must be in \[0, 1\), got 1.0"),
        (-0.1, "uniform", r"sparsity must be in \[0, 1\), got -0.1"),
        (float("nan"), "erk", r"sparsity must be in \[0, 1\), got nan"),
        (0.9, "kernel", r"distribution must be one of erk, er, uniform .* got 'kernel'"),
        (0.9, {"x": 0.5}, r"distribution names \['x'\]"),
        (0.9, {"a": 1.5}, r"distribution\['a'\] must be in \[0, 1\), got 1.5"),
        (0.9, {"b": 0.0}, r"means 30 of 300 weights active, but the layers fixed .* \(b\) take 200"),
        (0.9, {"a": 0.5, "b": 0.5}, r"asks for sparsity 0.5 in all, but sparsity=0.9"),
        (None, {"a": 0.5}, r"leaves \['b'\] open"),
        (None, "erk", "None goes only with a mapping"),
        (0.999, "uniform", "leaves layer .* without a single active weight"),
    ],
)
def test_an_impossible_request_says_what_is_wrong(
    sparsity: float, distribution: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        active_counts({"a": (10, 10), "b": (10, 20)}, sparsity, distribution)  # pyright: ignore[reportArgumentType]


def test_a_layer_that_was_fixed_has_what_was_asked_for() -> None:
    shapes = {"a": (16, 40), "b": (27, 37), "c": (16, 31)}
    for percent in range(5, 40):
        counts = active_counts(shapes, 0.7, {"a": percent / 100})
        assert counts["a"] == round((1 - percent / 100) * 640)
        assert sum(counts.values()) == round((1 - 0.7) * (640 + 999 + 496))
