"""One's own optimizer, data and network in `sparseopt train`."""

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch

from sparseopt.lab.config.configfile import read_config
from sparseopt.lab.config.recipes import RECIPES, Config, OptimizerName
from sparseopt.lab.errors import UserError
from sparseopt.lab.system.files import write_json
from sparseopt.lab.training.experiment import OPTIMIZERS, build
from sparseopt.lab.training.train import train

Small = Callable[..., Config]


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_every_optimizer_trains_and_keeps_the_masks(small: Small, name: OptimizerName) -> None:
    summary = train(small(epochs=1, optimizer=name, lr=0.01))
    experiment = summary.experiment
    assert experiment is not None
    assert experiment.topology is not None
    for layer, parameter in experiment.topology.parameters.items():
        assert not parameter.detach()[~experiment.topology.masks[layer]].any()


def test_the_options_reach_the_optimizer(small: Small) -> None:
    groups = build(small(optimizer="adamw", lr=0.002, weight_decay=0.05, momentum=0.8)).optimizer.param_groups
    assert groups[0]["betas"] == (0.8, 0.999)
    assert groups[0]["weight_decay"] == 0.05
    assert OPTIMIZERS["adamw"] is torch.optim.AdamW


def test_names_and_records_of_ones_own_data_and_network(small: Small, tmp_path: Path) -> None:
    one, other = (small(data=f"imagefolder:{place}/birds", model="timm:resnet18") for place in ("/a", "/b"))
    assert one.run_name.startswith("imagefolder-birds-timm-resnet18-rigl")
    assert one.run_name != other.run_name
    assert "/" not in one.run_name
    write_json(tmp_path / "config.json", {"config": one.to_json()})
    assert read_config(tmp_path / "config.json") == one
    assert RECIPES["digits-mlp"].run_name == "digits-mlp-rigl-0.95-auto-seed0"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"data": "mnst"}, "--data must be digits, .* or imagefolder:PATH, got mnst"),
        ({"data": "imagefolder:"}, "--data must be"),
        ({"model": "resnet21"}, "--model must be mlp, .* or timm:NAME, got resnet21"),
    ],
)
def test_what_is_neither_known_nor_ones_own(small: Small, changes: dict[str, str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        small(**changes)


def test_a_folder_without_images_is_told(small: Small, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="train/CLASS"):
        build(small(data=f"imagefolder:{tmp_path}", model="resnet20"))
