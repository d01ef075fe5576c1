import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparseopt.lab.config.configfile import read_config
from sparseopt.lab.config.recipes import RECIPES, Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.training.experiment import build_model, build_topology


def test_cifar_has_the_papers_values() -> None:
    config = RECIPES["cifar100-resnet20"]
    assert (config.epochs, config.batch_size, config.lr, config.momentum, config.weight_decay) == (
        *(100, 256, 0.1, 0.9, 5e-4),
    )
    assert (config.warmup_epochs, config.warmup_lr, config.final_lr) == (5, 0, 1e-6)
    assert (config.distribution, config.drop_fraction, config.every) == ("erk", 0.3, 100)
    assert (config.correction, config.grow_from, config.ham_alpha) == ("auto", "original", 80)


def test_cifar_has_the_authors_network_with_dense_shortcuts() -> None:
    model = build_model(RECIPES["cifar100-resnet20"], (3, 32, 32), 100)
    topology = build_topology(replace(RECIPES["cifar100-resnet20"], sparsity=0.97), model)
    assert topology is not None
    dense = {name for name, weight in model.named_parameters() if weight.dim() > 1} - set(topology.masks)
    assert dense == {"stages.1.0.shortcut.0.weight", "stages.2.0.shortcut.0.weight"}
    assert topology.active() == round(0.03 * topology.size())
    assert topology.size() == 274_096


@pytest.mark.parametrize(
    ("patterns", "sparse"),
    [
        ({"include": ("1.*", "4.weight")}, {"1.weight", "4.weight"}),
        ({"exclude": ("7.weight",)}, {"1.weight", "4.weight"}),
        ({"include": ("[14].weight",), "exclude": ("4.*",)}, {"1.weight"}),
    ],
)
def test_patterns_say_which_layers_are_sparse(patterns: dict[str, Any], sparse: set[str]) -> None:
    config = replace(RECIPES["digits-mlp"], **patterns)
    topology = build_topology(config, build_model(config, (1, 28, 28), 10))
    assert topology is not None
    assert set(topology.masks) == sparse
    assert config.run_name != RECIPES["digits-mlp"].run_name
    assert config.to_json()["exclude"] == list(config.exclude)


def test_imagenet_has_the_papers_values() -> None:
    config = RECIPES["imagenet-resnet50"]
    assert (config.epochs, config.batch_size, config.momentum, config.weight_decay) == (90, 128, 0.9, 1e-4)
    assert (config.warmup_epochs, config.warmup_lr, config.final_lr) == (5, 1e-5, 1e-5)
    assert replace(config, batch_size=1024).peak_lr == pytest.approx(0.4)


def test_recipes_are_named_after_their_data_and_network() -> None:
    assert [config.recipe for config in RECIPES.values()] == list(RECIPES)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sparsity", 1.0),
        ("sparsity", -0.1),
        ("sparsity", float("nan")),
        ("epochs", 0),
        ("lr", 0.0),
        ("momentum", 1.0),
        ("drop_fraction", 1.1),
        ("every", 0),
        ("max_grad_norm", 0.0),
        ("width", 0.0),
        ("hidden", ()),
        ("warmup_epochs", 21.0),
        ("lr_batch", 0),
        ("data_fraction", 0.0),
        ("data_fraction", 1.5),
        ("seed", -1),
        ("seed", 2**32),
    ],
)
def test_a_value_out_of_range_is_named(field: str, value: object) -> None:
    option = "--" + field.replace("_", "-")
    with pytest.raises(UserError, match=f"{option} must be .*, got {re.escape(str(value))}"):
        replace(RECIPES["digits-mlp"], **{field: value})


def test_run_names_tell_any_two_configurations_apart() -> None:
    usual = RECIPES["digits-mlp"]
    assert usual.run_name == "digits-mlp-rigl-0.95-auto-seed0"
    others: list[dict[str, object]] = [
        *({"seed": 1}, {"method": "set"}, {"sparsity": 0.9}, {"ham": True}, {"lr": 0.2}, {"width": 0.5}),
        *({"lr": 0.3}, {"correction": "none"}, {"data": "mnist"}, {"fan_in": "bimodal:50"}, {"width": 2.0}),
        *({"sparsity": 0.90000001}, {"sparsity": 0.90000002}),
    ]
    names = [replace(usual, **other).run_name for other in others]
    assert len({usual.run_name, *names}) == 1 + len(others)
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)


def test_a_name_is_made_from_what_departs_from_recipe_or_default() -> None:
    """So a setting that comes to be later leaves the names of the runs that do not use it as they are."""
    usual = RECIPES["digits-mlp"]
    assert replace(usual, data_fraction=0.5).unusual() == {"data_fraction": 0.5}
    without_recipe = replace(usual, data="cifar10", model="resnet32")
    assert "data_fraction" not in without_recipe.unusual()
    assert replace(without_recipe, data_fraction=0.5).run_name != without_recipe.run_name


def test_settings_of_masks_do_not_tell_dense_runs_apart() -> None:
    dense = replace(RECIPES["digits-mlp"], method="dense")
    assert dense.run_name == "digits-mlp-dense-seed0"
    assert replace(dense, sparsity=0.5, every=7, fan_in="constant").run_name == dense.run_name
    assert replace(dense, lr=0.2).run_name != dense.run_name


def record(path: Path, values: object) -> Path:
    path.write_text(json.dumps({"config": values, "versions": {"torch": "1"}}))
    return path


def test_a_recorded_configuration_comes_back(tmp_path: Path) -> None:
    config = replace(
        RECIPES["digits-mlp"], hidden=(8, 4), max_grad_norm=1.0, augment=False, ham=True, fan_in="bimodal:3"
    )
    assert read_config(record(tmp_path / "config.json", config.to_json())) == config


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"out": "/etc"}, "'out' that does not exist"),
        ({"method": "magic"}, "method cannot be 'magic'"),
        ({"seed": "--out=/etc"}, "seed cannot be"),
        ({"epochs": True}, "epochs cannot be True"),
        ({"lr": "0.1"}, "lr cannot be '0.1'"),
        ({"hidden": [64, "a"]}, "hidden cannot be"),
        ({"sparsity": 1.5}, "--sparsity must be"),
    ],
)
def test_a_record_is_checked_like_a_command_line(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    values = {**RECIPES["digits-mlp"].to_json(), **change}
    with pytest.raises(UserError, match=re.escape(complaint)):
        read_config(record(tmp_path / "config.json", values))


@pytest.mark.parametrize("contents", ["", "[]", "{}", '{"config": 3}', '{"config": {"seed": 1}}'])
def test_a_file_that_holds_no_configuration_is_refused(tmp_path: Path, contents: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(contents)
    with pytest.raises(UserError, match=r"config\.json"):
        read_config(path)
    with pytest.raises(UserError, match="cannot read"):
        read_config(tmp_path / "nothing.json")


def test_older_records_get_the_defaults_of_newer_settings(tmp_path: Path) -> None:
    values = RECIPES["digits-mlp"].to_json()
    del values["ham_beta"]
    assert isinstance(read_config(record(tmp_path / "config.json", values)), Config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip": "paper"}, "give the norm as well"),
        ({"clip": "paper", "max_grad_norm": 1.0, "correction": "shuffled"}, "is a control for --clip active"),
    ],
)
def test_the_papers_clip_is_refused_where_it_would_mislead(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(RECIPES["digits-mlp"], **changes)
