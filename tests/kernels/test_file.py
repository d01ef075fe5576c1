"""Packed files: small, exact, and refused when they are something else."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import sparseopt as so
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
    with pytest.raises(
        ValueError, match=r"'0\.weight' is not zero outside its mask; call topology\.apply\(\)"
    ):
        so.kernels.save(model, topology, tmp_path / "packed")


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_file({"0.weight": torch.zeros(10, 10)}, tmp_path / "dense")
    with pytest.raises(ValueError, match="has format None; this version reads 'sparseopt-packed-1'"):
        so.load(tmp_path / "dense", nn.Sequential(nn.Linear(10, 10)))
