"""`sparsify` on real modules: what becomes sparse, what a neuron is, what is refused."""

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn

import sparseopt as so


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 20),
        nn.LayerNorm(20),
        nn.Linear(20, 5),
    )


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def unchanged(model: nn.Module, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("module", "names", "neurons", "inputs"),
    [
        (nn.Linear(6, 4), ["weight"], 4, 6),
        (nn.Conv1d(6, 4, 3), ["weight"], 4, 18),
        (nn.Conv2d(6, 4, 3, groups=2), ["weight"], 4, 27),
        (nn.Conv3d(2, 4, 2), ["weight"], 4, 16),
        (nn.ConvTranspose1d(6, 4, 3), ["weight"], 4, 18),
        (nn.ConvTranspose2d(6, 4, 3, groups=2), ["weight"], 4, 27),
        (nn.ConvTranspose3d(2, 4, 2), ["weight"], 4, 16),
        (nn.Bilinear(3, 5, 4), ["weight"], 4, 15),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_every_kind_of_layer_knows_its_neurons(
    module: nn.Module, names: list[str], neurons: int, inputs: int
) -> None:
    topology = so.sparsify(module, 0.5, distribution="uniform")
    assert list(topology.masks) == names
    layer = topology.layers["weight"]
    assert (layer.neurons, layer.inputs) == (neurons, inputs)
    assert int(topology.fan_in("weight").sum()) == topology.active() == round(0.5 * neurons * inputs)


@pytest.mark.parametrize("groups", [1, 2])
def test_the_fan_in_of_a_transposed_convolution_is_what_reaches_the_output(groups: int) -> None:
    module = nn.ConvTranspose2d(4, 6, 1, groups=groups, bias=False)
    topology = so.sparsify(module, 0.5, distribution="uniform", seed=3)
    with torch.no_grad():
        module.weight.copy_(topology.masks["weight"].float())
        reached = module(torch.ones(1, 4, 1, 1)).flatten()  # each output counts its active inputs
    assert topology.fan_in("weight").tolist() == reached.tolist()


def test_attention_is_sparse_in_its_projections() -> None:
    joint = so.sparsify(nn.MultiheadAttention(8, 2), 0.5)
    assert set(joint.masks) == {"in_proj_weight", "out_proj.weight"}
    apart = so.sparsify(nn.MultiheadAttention(8, 2, kdim=6, vdim=4, add_bias_kv=True), 0.5)
    assert set(apart.masks) == {"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"}


def test_biases_norms_and_embeddings_stay_dense() -> None:
    model = nn.ModuleDict(
        {"embed": nn.Embedding(30, 8), "body": network(), "head": nn.Linear(8, 30, bias=False)}
    )
    model["head"].weight = model["embed"].weight  # pyright: ignore[reportArgumentType]
    before = snapshot(model)
    topology = so.sparsify(model, 0.9)
    assert set(topology.masks) == {"body.0.weight", "body.4.weight", "body.6.weight"}
    for name, value in model.state_dict().items():
        assert name in topology.masks or torch.equal(value, before[name])


def test_a_tied_weight_gets_one_mask() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    topology = so.sparsify(model, 0.5)
    assert list(topology.masks) == ["0.weight"]
    assert topology.size() == 64


def test_weights_outside_the_mask_are_exactly_zero_and_the_others_untouched() -> None:
    model = network()
    before = snapshot(model)
    topology = so.sparsify(model, 0.9, seed=5)
    sizes = {name: before[name].numel() for name in topology.masks}
    assert topology.active() == round(0.1 * sum(sizes.values()))
    for name, mask in topology.masks.items():
        assert torch.equal(model.state_dict()[name], torch.where(mask, before[name], 0.0))


def test_masks_depend_on_the_seed_and_on_nothing_else() -> None:
    first, second, other = (so.sparsify(network(), 0.9, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(first.masks[name], second.masks[name]) for name in first.masks)
    assert not any(torch.equal(first.masks[name], other.masks[name]) for name in ("0.weight", "4.weight"))


def test_include_and_exclude_are_globs_over_parameter_names() -> None:
    assert set(so.sparsify(network(), 0.5, include="[46].*").masks) == {"4.weight", "6.weight"}
    assert set(so.sparsify(network(), 0.5, exclude=["0.*", "6.weight"]).masks) == {"4.weight"}


def test_given_masks_are_taken_and_the_other_layers_are_dense(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    mask = torch.rand(20, 8 * 36) < 0.3
    topology = so.sparsify(model, masks={"4.weight": mask})
    assert torch.equal(topology.masks["4.weight"], mask)
    assert topology.sparsity("0.weight") == 0
    mask.zero_()
    assert topology.masks["4.weight"].any(), "the topology keeps a copy"
    with caplog.at_level(logging.WARNING):
        so.sparsify(network(), 0.9, masks={"4.weight": torch.rand(20, 8 * 36) < 0.3})
    assert "the masks decide" in caplog.text


def test_nonzero_adopts_the_zeros_a_model_has() -> None:
    model = network()
    first = so.sparsify(model, 0.9)
    adopted = so.sparsify(copy.deepcopy(model), masks="nonzero")
    assert all(torch.equal(adopted.masks[name], mask) for name, mask in first.masks.items())


def test_sparse_init_has_variance_two_over_the_active_fan_in() -> None:
    model = nn.Linear(4000, 3, bias=False)
    mask = torch.zeros(3, 4000, dtype=torch.bool)
    mask[0, :100] = True
    mask[1, :] = True
    so.sparsify(model, masks={"weight": mask}, init="sparse")
    variance = [model.weight[i][mask[i]].var().item() for i in (0, 1)]
    assert variance == [pytest.approx(2 / 100, rel=0.5), pytest.approx(2 / 4000, rel=0.1)]
    assert not model.weight[2].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": "0.95"}, r"sparsity must be in \[0, 1\), got '0.95'"),
        ({"sparsity": 1.3}, r"sparsity must be in \[0, 1\), got 1.3; it is the share of zeros, 0.95 for 95%"),
        ({"sparsity": float("nan")}, "got nan"),
        (
            {"sparsity": 0.5, "include": "conv*"},
            "include pattern 'conv\\*' matches no sparsifiable parameter; near names: ",
        ),
        ({"sparsity": 0.5, "exclude": "4.weigth"}, "near names: 4.weight"),
        ({"sparsity": 0.5, "include": "0.*", "exclude": "*"}, "together leave no layer"),
        ({"sparsity": 0.5, "init": "kaiming"}, "init must be None or 'sparse', got 'kaiming'"),
        ({"masks": "zeros"}, "masks must be None, 'nonzero', .*or a mapping"),
        ({"masks": {"x": torch.ones(1).bool()}}, r"masks names \['x'\]"),
        ({"masks": {"6.weight": torch.ones(5, 20)}}, r"must be a bool tensor, got torch.float32"),
        ({"masks": {"6.weight": torch.ones(20, 5).bool()}}, r"has shape \(20, 5\), the weight has \(5, 20\)"),
        ({"masks": {"6.weight": torch.zeros(5, 20).bool()}}, "mask of '6.weight' is empty"),
        ({}, "sparsity must be given, such as 0.9"),
    ],
)
def test_bad_input_is_refused_and_leaves_the_model_alone(options: dict[str, object], message: str) -> None:
    model = network()
    before = snapshot(model)
    with pytest.raises(ValueError, match=message):
        so.sparsify(model, **options)  # pyright: ignore[reportArgumentType]
    assert unchanged(model, before)


@pytest.mark.parametrize(
    ("model", "masks", "message"),
    [
        (network().parameters(), None, "model must be an nn.Module, got <generator"),
        (nn.Linear, None, "model must be an nn.Module, got <class"),
        (network(), [torch.ones(20, 288)], "masks must be None, 'nonzero', .*or a mapping .*, got list"),
        (network(), {"4.weight": [[True]]}, "mask of '4.weight' must be a bool tensor, got list"),
    ],
)
def test_what_is_of_another_kind_is_named(model: Any, masks: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        so.sparsify(model, 0.5, masks=masks)


def test_a_model_without_sparsifiable_layers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no layer .*Linear"):
        so.sparsify(nn.Sequential(nn.LayerNorm(4), nn.Embedding(3, 4)), 0.5)


def test_a_layer_without_shape_or_storage_is_refused() -> None:
    with pytest.raises(ValueError, match="no shape"):
        so.sparsify(nn.LazyLinear(4), 0.5)
    with pytest.raises(ValueError, match="meta device"):
        so.sparsify(nn.Linear(4, 4, device="meta"), 0.5)
    empty = nn.Linear(4, 4)
    empty.weight = nn.Parameter(torch.empty(4, 0))
    with pytest.raises(ValueError, match=r"'weight' .*\(4, 0\)"):
        so.sparsify(empty, 0.5)


def test_what_is_excluded_may_be_without_shape_or_storage() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4), nn.Linear(4, 4, device="meta"))
    assert list(so.sparsify(model, 0.5, include="0.*").masks) == ["0.weight"]


def test_sparsify_twice_is_refused() -> None:
    model = network()
    so.sparsify(model, 0.5)  # nobody keeps the topology: still refused
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"'0\.weight' is sparse already"):
        so.sparsify(model, 0.9)
    assert unchanged(model, before)
    assert so.sparsify(model, masks="nonzero").sparsity() == pytest.approx(0.5, abs=1e-3)


def test_nonzero_does_not_take_a_model_away_from_its_optimizer() -> None:
    model = network()
    topology = so.sparsify(model, 0.5)
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, so.Static())
    with pytest.raises(ValueError, match="is sparse already"):
        so.sparsify(model, masks="nonzero")
    del optimizer
    assert so.sparsify(model, masks="nonzero").active() == topology.active()


def test_frozen_weights_that_include_matches_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """A pattern may have meant others: they have learnt, and will not learn around what is cut."""
    for sparsity, told in ((0.9, True), (0.0, False)):
        model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 8))
        model[0].requires_grad_(False)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            so.sparsify(model, sparsity, distribution="uniform", include="*.weight")
        assert ("0.weight" in caplog.text and "frozen" in caplog.text) == told


def test_layers_without_groups_of_m_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 8))
    with caplog.at_level(logging.WARNING):
        topology = so.sparsify(model, masks="2:4")
    assert topology.active("0.weight") == 480
    assert topology.active("2.weight") == 64
    assert "0.weight" in caplog.text
    assert "2.weight" not in caplog.text


def test_one_threshold_for_all_layers_takes_no_distribution_by_layer() -> None:
    model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 8))
    with pytest.raises(ValueError, match=r"magnitude-global.*distribution"):
        so.sparsify(model, 0.9, masks="magnitude-global", distribution={"0.weight": 0.5})
