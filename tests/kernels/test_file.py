"""Packed files: small, exact, and refused when they are something else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import sparseopt as so
from sparseopt.kernels.frozen.tensorfile import decode, encode
from sparseopt.lab.models.resnet_cifar import CifarResNet


def test_a_packed_network_is_small_and_comes_back_exactly(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = CifarResNet(20, 100)
    topology = so.sparsify(model, 0.95)
    model(torch.randn(4, 3, 16, 16))
    so.kernels.save(model, topology, tmp_path / "packed")
    save_file(model.state_dict(), tmp_path / "dense")
    assert (tmp_path / "packed").stat().st_size <= 0.15 * (tmp_path / "dense").stat().st_size
    other = CifarResNet(20, 100)
    loaded = so.load(tmp_path / "packed", other)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    )
    assert all(torch.equal(mask, loaded.masks[name]) for name, mask in topology.masks.items())


def test_active_weights_that_happen_to_be_zero_stay_active(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(10, 10))
    topology = so.sparsify(model, 0.5)
    with torch.no_grad():
        model[0].weight.zero_()  # pyright: ignore
    so.kernels.save(model, topology, tmp_path / "packed")
    assert so.load(tmp_path / "packed", nn.Sequential(nn.Linear(10, 10))).active() == 50


def test_weights_outside_the_mask_are_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(10, 10))
    topology = so.sparsify(model, 0.5)
    with torch.no_grad():
        model[0].weight.fill_(1)  # pyright: ignore
    with pytest.raises(ValueError, match=r"'0\.weight' .*mask.*topology\.apply\(\)"):
        so.kernels.save(model, topology, tmp_path / "packed")


def test_what_is_said_helps_an_averaged_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(10, 10))
    topology = so.sparsify(model, 0.5)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    with torch.no_grad():
        average.module.get_parameter("0.weight").view(-1)[:60] = 1.0  # it has seen other masks
    topology.apply()
    with pytest.raises(ValueError, match=r"masks='nonzero'"):
        so.kernels.save(average.module, topology, tmp_path / "packed")
    so.kernels.save(average.module, so.sparsify(average.module, masks="nonzero"), tmp_path / "packed")
    loaded = nn.Sequential(nn.Linear(10, 10))
    so.load(tmp_path / "packed", loaded)
    assert torch.equal(loaded.get_parameter("0.weight"), average.module.get_parameter("0.weight"))


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_file({"0.weight": torch.zeros(10, 10)}, tmp_path / "dense")
    with pytest.raises(ValueError, match=r"'sparseopt-packed-1', but None"):
        so.load(tmp_path / "dense", nn.Sequential(nn.Linear(10, 10)))


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10))


Tensors = dict[str, Tensor]
DAMAGE: dict[str, Callable[[Tensors], Tensors]] = {
    "one value for a layer": lambda t: {"0.weight#values": t["0.weight#values"][:1]},
    "a value without a dimension": lambda t: {"0.weight#values": torch.tensor(1.0)},
    "values in two dimensions": lambda t: {"0.weight#values": t["0.weight#values"].view(1, -1)},
    "one value too many": lambda t: {"0.weight#values": torch.ones(51)},
    "whole numbers": lambda t: {"0.weight#values": torch.ones(50, dtype=torch.int32)},
    "NaN": lambda t: {"0.weight#values": t["0.weight#values"] * float("nan")},
    "infinity in a bias": lambda t: {"0.bias": t["0.bias"] / 0},
    "a mask that is too long": lambda t: {
        "0.weight#mask": torch.cat([t["0.weight#mask"], torch.ones(9).byte()])
    },
    "a mask that is too short": lambda t: {"0.weight#mask": t["0.weight#mask"][:-1]},
    "bits beyond the last weight": lambda t: {"0.weight#mask": t["0.weight#mask"] | 128},
    "a mask of floats": lambda t: {"0.weight#mask": t["0.weight#mask"].float()},
    "an empty mask": lambda t: {"0.weight#mask": torch.zeros(13).byte(), "0.weight#values": torch.ones(0)},
    "a bias of another shape": lambda t: {"0.bias": torch.ones(1)},
    "a tensor too many": lambda t: {"stranger": torch.ones(1)},
    "a counter of floats": lambda t: {"1.num_batches_tracked": torch.tensor(0.5)},
}


@pytest.mark.parametrize(
    "damage", [*DAMAGE, "no mask", "no values", "no bias", "shapes", "shape", "no shapes"]
)
def test_damaged_files_are_refused_and_leave_the_model_as_it_was(tmp_path: Path, damage: str) -> None:
    saved = network()
    so.kernels.save(saved, so.sparsify(saved, 0.5), tmp_path / "packed")
    tensors, shapes = load_file(tmp_path / "packed"), {"0.weight": [10, 10]}
    metadata = {"format": "sparseopt-packed-1", "shapes": json.dumps(shapes)}
    if damage in DAMAGE:
        tensors |= DAMAGE[damage](tensors)
    elif damage in ("no mask", "no values", "no bias"):
        del tensors[{"no mask": "0.weight#mask", "no values": "0.weight#values", "no bias": "0.bias"}[damage]]
    elif damage == "no shapes":
        del metadata["shapes"]
    else:
        metadata["shapes"] = "[3" if damage == "shapes" else json.dumps({"0.weight": [-10, -10]})
    save_file(tensors, tmp_path / "packed", metadata)
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"packed|0\.weight"):
        so.load(tmp_path / "packed", model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    so.sparsify(model, 0.5)  # nor has it become a sparse model


def test_a_sparse_model_is_not_filled_anew(tmp_path: Path) -> None:
    model = network()
    so.kernels.save(model, so.sparsify(model, 0.5), tmp_path / "packed")
    with torch.no_grad():
        model[0].weight.mul_(2)  # pyright: ignore
    before = model[0].weight.clone()  # pyright: ignore
    with pytest.raises(ValueError, match="sparse already"):
        so.load(tmp_path / "packed", model)
    assert torch.equal(model[0].weight, before)  # pyright: ignore


def test_the_files_are_safetensors_to_the_byte_and_back(tmp_path: Path) -> None:
    """Written here and read by the library, and the other way round."""
    tensors = {
        "floats": torch.randn(3, 5),
        "halves": torch.randn(7).bfloat16(),
        "bytes": torch.arange(3, dtype=torch.uint8),
        "none": torch.zeros(0, 4),
        "number": torch.tensor(3),
    }
    (tmp_path / "ours").write_bytes(encode(tensors, {"format": "a"}))
    theirs = load_file(tmp_path / "ours")
    save_file(tensors, tmp_path / "theirs", {"format": "a"})
    ours, metadata = decode(tmp_path / "theirs")
    assert metadata == {"format": "a"}
    for name, tensor in tensors.items():
        for found in (ours[name], theirs[name]):
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor)


@pytest.mark.parametrize("kept", [0, 7, 8, 20, 100, -1])
def test_files_that_are_cut_off_are_refused(tmp_path: Path, kept: int) -> None:
    data = encode({"a": torch.ones(40), "b": torch.ones(3)}, {})
    (tmp_path / "cut").write_bytes(data[:kept])
    with pytest.raises(ValueError, match="not a file of tensors"):
        decode(tmp_path / "cut")
    (tmp_path / "cut").write_bytes(data + b"more")
    with pytest.raises(ValueError, match="not a file of tensors"):
        decode(tmp_path / "cut")
