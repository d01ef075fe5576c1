"""Every method is one flag of the lab: it trains, is counted, and refuses settings it does not have."""

import dataclasses
from typing import Any, get_args

import pytest
import torch
from torch.nn.functional import cross_entropy

import sparseopt as so

pytest.importorskip("tyro", reason="the lab is not installed")

from sparseopt.lab.commands import flops as flops_command
from sparseopt.lab.config.recipes import RECIPES, Config, MethodName
from sparseopt.lab.errors import UserError
from sparseopt.lab.training.experiment import build, build_model, build_topology
from sparseopt.lab.training.methods import KINDS, build_method

METHODS = [name for name in get_args(MethodName) if name != "dense"]


def config(method: str, **options: Any) -> Config:
    small = {
        "hidden": (24,),
        "epochs": 1,
        "every": 2,
        "batch_size": 64,
        "data_fraction": 0.1,
        "warmup_epochs": 0.0,
    }
    return dataclasses.replace(RECIPES["digits-mlp"], method=method, sparsity=0.5, **small | options)  # pyright: ignore


@pytest.mark.parametrize("method", METHODS)
def test_it_trains(method: str) -> None:
    experiment = build(config(method))
    optimizer, topology = experiment.optimizer, experiment.topology
    assert isinstance(optimizer, so.SparseOpt)
    assert topology is not None
    for step in range(4):
        draw = so.topology.generator(0, step)
        images, labels = torch.randn(16, *experiment.data.shape, generator=draw), torch.arange(16) % 10
        optimizer.zero_grad()
        cross_entropy(experiment.scores(experiment.forward, images), labels).backward()
        experiment.update()
    for name, mask in topology.masks.items():
        weight = topology.parameters[name].detach()
        assert weight.isfinite().all()
        assert not weight[~mask].any()


def test_there_is_a_class_for_every_name() -> None:
    assert set(KINDS) | {"nm"} == set(get_args(MethodName))


def test_a_methods_own_settings_are_arguments_of_its_constructor() -> None:
    method = build_method(config("mest", method_options=("soft=True", "lam=0.5", "drop-fraction=0.2")), 100)
    assert method == so.MEST(100, 0.2, 2, 0.75, lam=0.5, soft=True)
    assert build_method(config("nm", method_options=("n=1", "m=2")), 100) == so.NM(
        so.RigL(100, 0.3, 2, 0.75), n=1, m=2
    )
    assert build_method(config("gmp", method_options=("scope=global",)), 100).scope == "global"  # pyright: ignore


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "rigl", "method_options": ("lam=1",)}, "--method-options lam: rigl has no such setting"),
        ({"method": "rigl", "method_options": ("soft",)}, "must be NAME=VALUE, got 'soft'"),
        ({"method": "srste", "sparsity": 0.9}, "keeps 2 of every 4: give --sparsity 0.5, got 0.9"),
    ],
)
def test_settings_it_does_not_have_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_method(dataclasses.replace(config("rigl"), **options), 100)


def test_flops_says_what_it_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert flops_command.main(["text-decoder"]) == 0
    told = capsys.readouterr().out
    assert "5 epochs of 6,500 texts" in told
    assert "FLOPs," in told


def test_flops_leaves_dense_what_the_recipe_leaves_dense(capsys: pytest.CaptureFixture[str]) -> None:
    recipe, shape = RECIPES["cifar100-resnet20"], (3, 32, 32)
    model = build_model(recipe, shape, 100)
    topology = build_topology(dataclasses.replace(recipe, method="static", sparsity=0.95), model)
    assert topology is not None
    expected = so.analysis.count_flops(model, topology, torch.zeros(1, *shape)).inference
    assert flops_command.main(["cifar100-resnet20", "--method", "static", "--sparsity", "0.95"]) == 0
    out = capsys.readouterr().out
    assert f"{topology.active():,}" in out
    assert f"{expected:.3f}x" in out


@pytest.mark.parametrize("method", METHODS)
def test_flops_counts_it(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    sparsity = "0.5" if method in ("nm", "srste") else "0.9"
    arguments = ["digits-mlp", "--method", method, "--sparsity", sparsity, "--epochs", "2"]
    assert flops_command.main(arguments) == 0
    assert method in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["--method", "nm"], {"0.5": "0.527x"}),  # all layers alike: half of all but the dense shortcuts
        (["--method", "annealed", "--sparsity", "0.95"], {"0.95": "0.102x"}),
        (["--method", "dense"], {}),
    ],
    ids=str,
)
def test_flops_counts_with_the_densities_that_a_method_has(
    arguments: list[str], rows: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert flops_command.main(["cifar100-resnet20", *arguments]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines() if "x" in line and "e+" in line]
    assert {line[0]: line[3] for line in table} == {"dense": "1.000x", **rows}


def test_flops_refuses_densities_that_a_method_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert flops_command.main(["cifar100-resnet20", "--method", "srste", "--distribution", "erk"]) == 2
    assert "--method srste gives all layers the same density" in capsys.readouterr().err


def test_a_word_where_a_number_is_due_is_named() -> None:
    config = dataclasses.replace(RECIPES["digits-mlp"], method="srigl", method_options=("gamma_sal=abc",))
    with pytest.raises(UserError, match="gamma_sal=abc"):
        build_method(config, 100)
