"""What can be read off a topology, and how it is saved."""

import copy
import io
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

import sparseopt as so
from sparseopt.analysis.flops import forward_flops


def hand_made() -> so.Topology:
    model = nn.Linear(4, 3, bias=False)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    return so.sparsify(model, masks={"weight": mask})


def test_the_numbers_of_a_layer_by_hand() -> None:
    topology = hand_made()
    assert topology.fan_in("weight").tolist() == [4, 1, 0]
    assert topology.neuron_sparsity("weight").tolist() == [0.0, 0.75, 1.0]
    assert topology.sparsity() == topology.sparsity("weight") == pytest.approx(7 / 12)
    assert (topology.active(), topology.size(), topology.dead_neurons()) == (5, 12, 1)


def test_itop_counts_what_was_ever_active() -> None:
    topology = hand_made()
    assert topology.itop_rate() == pytest.approx(5 / 12)
    moved = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]).bool()
    topology.replace({"weight": moved})
    topology.replace({"weight": moved.flip(0)})
    ever = topology.fan_in("weight")  # the last mask: rows 1, 1, 3
    assert ever.tolist() == [1, 1, 3]
    assert topology.itop_rate() == pytest.approx(9 / 12)


def test_replace_holds_the_counts() -> None:
    topology = hand_made()
    with pytest.raises(ValueError, match=r"12 active weights.* 5"):
        topology.replace({"weight": torch.ones(3, 4).bool()})
    assert topology.active() == int(topology.masks["weight"].sum()) == 5


def test_summary_is_a_table_with_one_row_a_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False))
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    lines = so.sparsify(model, masks={"0.weight": mask}).summary().splitlines()
    assert lines[0].split("  ")[0] == "layer"
    # fan-in 4, 1, 0: mean 5/3, factors sqrt(12/5), sqrt(3/5), 0 with standard deviation sqrt(2/5)
    assert lines[2].split() == ["0.weight", "5", "12", "0.5833", "1.7", "0", "4", "1", "0.632"]
    assert lines[3].split() == ["1.weight", "6", "6", "0.0000", "3.0", "3", "3", "0", "0.000"]
    assert lines[-1].split() == ["network", "11", "18", "0.3889", "1"]


def test_an_unknown_layer_is_named() -> None:
    with pytest.raises(KeyError, match=r"'fc'.* weight"):
        hand_made().fan_in("fc")


def test_state_survives_a_file_and_weights_only() -> None:
    topology = so.sparsify(nn.Linear(30, 20), 0.8, seed=7)
    moved = topology.masks["weight"].flip(1)
    topology.replace({"weight": moved})
    file = io.BytesIO()
    torch.save(topology.state_dict(), file)
    file.seek(0)
    model = nn.Linear(30, 20)
    other = so.sparsify(model, 0.8, seed=1)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.masks["weight"], moved)
    assert other.itop_rate() == topology.itop_rate() > 0.2
    assert other.seed == 7
    assert not model.weight[~moved].any(), "loading holds the weights to the mask"


def test_packed_masks_take_one_bit_a_weight() -> None:
    state = so.sparsify(nn.Linear(800, 10), 0.8).state_dict()
    assert state["layers"]["weight"]["mask"].numel() == 1000


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Sequential(nn.Linear(30, 20)), "only in the state"),
        (nn.Linear(20, 30), r"has shape \(30, 20\) in the state, \(20, 30\) here"),
    ],
)
def test_the_state_of_another_network_is_refused(other: nn.Module, message: str) -> None:
    here = so.sparsify(nn.Linear(30, 20), 0.8)
    before = here.masks["weight"].clone()
    with pytest.raises(ValueError, match=message):
        here.load_state_dict(so.sparsify(other, 0.8).state_dict())
    assert torch.equal(here.masks["weight"], before)


def test_the_state_of_another_sparsity_is_refused() -> None:
    here = so.sparsify(nn.Linear(30, 20), 0.8)
    with pytest.raises(ValueError, match=r"60 active weights.* 120"):
        here.load_state_dict(so.sparsify(nn.Linear(30, 20), 0.9).state_dict())
    with pytest.raises(ValueError, match="format None"):
        here.load_state_dict({})


def test_masks_are_changed_by_replace_alone() -> None:
    model = torch.nn.Linear(8, 4)
    topology = so.sparsify(model, 0.5)
    with pytest.raises(TypeError, match="replace"):
        topology.masks["weight"] = torch.ones(4, 8).bool()  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_replaced_masks_cut_the_weight(storage: Literal["dense", "packed"]) -> None:
    model = torch.nn.Linear(8, 4)
    topology = so.sparsify(model, 0.5, storage=storage)
    moved = topology.masks["weight"].flip(0)
    topology.replace({"weight": moved})
    assert not model.weight[~moved].any()


def test_a_state_of_a_wrapped_model_says_what_to_do() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    wrapped = torch.nn.Module()
    wrapped.add_module("module", copy.deepcopy(model))
    state = so.sparsify(wrapped, 0.5).state_dict()
    with pytest.raises(ValueError, match="before that"):
        so.sparsify(model, 0.5).load_state_dict(state)


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_a_compiled_model_has_the_names_and_masks_of_the_one_inside(
    storage: Literal["dense", "packed"],
) -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    plain = so.sparsify(copy.deepcopy(model), 0.5, storage=storage)
    compiled: Any = torch.compile(model, backend="eager")
    topology = so.sparsify(compiled, 0.5, storage=storage)
    assert list(topology.masks) == ["0.weight", "3.weight"]
    assert topology.normed == plain.normed == {"0.weight"}
    assert all(torch.equal(mask, plain.masks[name]) for name, mask in topology.masks.items())
    topology.load_state_dict(plain.state_dict())
    assert list(forward_flops(compiled, torch.zeros(1, 8))) == ["0.weight", "3.weight"]


def test_a_small_file_fills_a_compiled_model(tmp_path: Path) -> None:
    model, other = nn.Linear(8, 6), nn.Linear(8, 6)
    topology = so.sparsify(model, 0.5)
    compiled: list[Any] = [torch.compile(each, backend="eager") for each in (model, other)]
    so.kernels.save(compiled[0], topology, tmp_path / "small.safetensors")
    loaded = so.load(tmp_path / "small.safetensors", compiled[1])
    assert torch.equal(loaded.masks["weight"], topology.masks["weight"])
    assert torch.equal(other.weight, model.weight)
