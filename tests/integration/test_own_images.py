"""A network of timm on a folder of images, as `sparseopt train --model timm:NAME --data imagefolder:PATH` trains it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchvision", reason="torchvision is not installed", exc_type=ImportError)
pytest.importorskip("timm", reason="timm is not installed", exc_type=ImportError)
pytest.importorskip("tyro", reason="the lab is not installed")

import torch
from PIL import Image

from sparseopt.lab.config.recipes import RECIPES, Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.training.experiment import build
from sparseopt.lab.training.train import train


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Three classes of two grey images each, for training and test."""
    for part in ("train", "val"):
        for number in range(3):
            folder = tmp_path / part / f"class{number}"
            folder.mkdir(parents=True)
            for image in range(2):
                Image.new("RGB", (40, 48), (80 * number, 10 * image, 0)).save(folder / f"{image}.png")
    changes: dict[str, Any] = {
        "epochs": 1,
        "exclude": (),
        "batch_size": 6,
        "warmup_epochs": 0.0,
        "every": 1,
        "image_size": 32,
    }
    return replace(RECIPES["cifar100-resnet20"], data=f"imagefolder:{tmp_path}", **changes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_trains(config: Config) -> None:
    summary = train(replace(config, model="timm:resnet18"))
    assert summary.experiment is not None
    assert summary.experiment.data.shape == (3, 32, 32)
    assert summary.experiment.data.classes == 3
    assert summary.rows[0]["sparsity"] == pytest.approx(0.9, abs=1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_transformer_is_told_the_size_of_the_images(config: Config) -> None:
    model = build(replace(config, model="timm:vit_tiny_patch16_224")).model
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


def test_a_network_that_timm_does_not_have(config: Config) -> None:
    with pytest.raises(UserError, match="did you mean resnet18"):
        build(replace(config, model="timm:resnet118"))
