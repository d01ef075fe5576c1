"""Random masks: exact counts, chosen fan-in, the same on every call."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sparseopt as so
from sparseopt.topology import Layer, fan_in_masks, generator
from sparseopt.topology.bits import pack, unpack
from sparseopt.topology.selection import take_highest, take_lowest
from sparseopt.topology.start.masks import mask_maker

layers = st.one_of(
    st.builds(lambda a, b, k: Layer("w", (a, b, k)), *[st.integers(1, 12)] * 3),
    st.builds(
        lambda a, b, g: Layer("w", (a * g, b, 3), transposed=True, groups=g),
        *[st.integers(1, 8)] * 2,
        st.integers(1, 3),
    ),
)


@given(
    layer=layers,
    share=st.floats(0, 1),
    pattern=st.sampled_from(["random", "constant", "bimodal:4", "bimodal:50"]),
)
def test_every_pattern_has_exactly_the_active_weights_asked_for(
    layer: Layer, share: float, pattern: str
) -> None:
    active = round(share * layer.size)
    mask = mask_maker(pattern)(layer, active, generator(0, "w"))
    assert mask.shape == torch.Size(layer.shape)
    assert int(mask.sum()) == active


@given(layer=layers, share=st.floats(0, 1))
def test_constant_fan_in_differs_by_at_most_one(layer: Layer, share: float) -> None:
    mask = mask_maker("constant")(layer, round(share * layer.size), generator(0, "w"))
    fan_in = layer.by_neuron(mask).sum(1)
    assert int(fan_in.max() - fan_in.min()) <= 1


def test_bimodal_fan_in_has_the_ratio_asked_for_between_halves() -> None:
    layer = Layer("w", (64, 1000))
    fan_in = layer.by_neuron(mask_maker("bimodal:9")(layer, 6400, generator(3, "w"))).sum(1).sort().values
    assert fan_in[:32].tolist() == [20] * 32  # 32 * 20 + 32 * 180 = 6400
    assert fan_in[32:].tolist() == [180] * 32


def test_bimodal_fan_in_leaves_no_neuron_without_inputs_where_there_are_enough_weights() -> None:
    layer = Layer("w", (10, 100))
    fan_in = layer.by_neuron(mask_maker("bimodal:1000")(layer, 60, generator(0, "w"))).sum(1)
    assert int(fan_in.min()) == 1


@pytest.mark.parametrize("pattern", ["ragged", "bimodal", "bimodal:x", "bimodal:0.5", "bimodal:nan"])
def test_an_unknown_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="fan-in pattern must be"):
        mask_maker(pattern)


def test_fan_in_masks_feed_sparsify_and_depend_on_the_seed_alone() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(50, 40), nn.Linear(40, 10))

    masks = fan_in_masks(model(), 0.8, "constant", distribution="uniform", seed=1)
    again = fan_in_masks(model(), 0.8, "constant", distribution="uniform", seed=1)
    other = fan_in_masks(model(), 0.8, "constant", distribution="uniform", seed=2)
    assert all(torch.equal(masks[name], again[name]) for name in masks)
    assert not all(torch.equal(masks[name], other[name]) for name in masks)
    topology = so.sparsify(model(), 0.8, masks=masks)
    assert topology.fan_in("0.weight").tolist() == [10] * 40
    assert topology.sparsity() == pytest.approx(0.8)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_packing_keeps_every_bit(bits: list[bool]) -> None:
    mask = torch.tensor(bits)
    packed = pack(mask)
    assert packed.numel() == -(-len(bits) // 8)
    assert unpack(packed, mask.shape).tolist() == bits


@given(
    entries=st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 2.0, -1.0, float("inf"), float("nan")]), st.booleans()),
        min_size=1,
        max_size=30,
    ),
    data=st.data(),
)
def test_selection_is_exact_and_breaks_ties_by_the_lowest_index(
    entries: list[tuple[float, bool]], data: st.DataObject
) -> None:
    score = torch.tensor([value for value, _ in entries])
    candidates = torch.tensor([allowed for _, allowed in entries])
    k = data.draw(st.integers(0, int(candidates.sum())))

    def expected(order: list[float]) -> set[int]:
        allowed = [i for i, (_, ok) in enumerate(entries) if ok]
        return set(sorted(allowed, key=lambda i: (order[i], i))[:k])

    values = [float("inf") if v != v else v for v in score.tolist()]
    assert set(take_lowest(score, candidates, k).nonzero().flatten().tolist()) == expected(values)
    values = [float("inf") if v != v else -v for v in score.tolist()]
    assert set(take_highest(score, candidates, k).nonzero().flatten().tolist()) == expected(values)


def test_generators_are_keyed_by_seed_step_and_layer() -> None:
    def draw(*key: int | str) -> list[float]:
        return torch.rand(4, generator=generator(0, *key)).tolist()

    assert draw(1, "a") == draw(1, "a")
    assert len({tuple(draw(*key)) for key in [(1, "a"), (2, "a"), (1, "b"), (11, "")]}) == 4
