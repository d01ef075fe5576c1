"""Which runs a target stands for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sparseopt.lab.errors import UserError
from sparseopt.lab.reproduce.grid import Arm, Grid
from sparseopt.lab.reproduce.scale import Scale, sentence
from sparseopt.lab.reproduce.targets import TARGETS, Target

AtScale = Callable[..., Grid]


def test_the_papers_table_has_the_papers_rows_in_its_order(at_scale: AtScale) -> None:
    grid = at_scale(TARGETS["table-cifar100-rigl"])
    labels = [row.labels for row in grid.rows]
    assert labels[:5] == [
        ("90%", "RigL", "SparseOpt w/ HAM"),
        ("90%", "RigL", "SparseOpt"),
        ("90%", "RigL", "baseline w/ HAM"),
        ("90%", "RigL", "baseline"),
        ("95%", "RigL", "SparseOpt w/ HAM"),
    ]
    assert len(grid.configs()) == 3 * 4 * 4 * 3  # sparsities, rows, epochs, seeds
    assert len({config.run_name for config in grid.configs()}) == len(grid.configs())


def test_a_run_is_the_recipe_but_for_what_is_varied(at_scale: AtScale) -> None:
    target = TARGETS["table-cifar100-set"]
    grid = at_scale(target)
    config = grid.config(grid.rows[0], 200, 2)
    assert config == replace(
        target.recipe, epochs=200, method="set", sparsity=0.9, correction="layer", ham=True, seed=2
    )


@pytest.mark.parametrize(("epochs", "warmup"), [(500, 5.0), (20, 5.0), (8, 2.0), (5, 1.25), (1, 0.25)])
def test_the_warm_up_is_the_papers_or_a_quarter(at_scale: AtScale, epochs: int, warmup: float) -> None:
    grid = at_scale(TARGETS["table-cifar100-set"], epochs=(epochs,))
    assert grid.config(grid.rows[0], epochs, 0).warmup_epochs == warmup


def test_renormalised_tables_clip_all_rows_as_the_paper_and_carry_the_control(at_scale: AtScale) -> None:
    grid = at_scale(TARGETS["table-cifar100-rigl-renorm"])
    assert {(config.max_grad_norm, config.clip) for config in grid.configs()} == {(1.0, "paper")}
    controls = [arm for arm in grid.arms if arm.lr_factor != 1]
    assert [arm.label for arm in controls] == ["baseline, lr x2", "baseline, lr x4"]
    lrs = {grid.config(row, 100, 0).lr for row in grid.rows if row.arm in controls}
    assert lrs == {0.2, 0.4}


def test_what_would_mislead_under_renormalisation_is_refused(at_scale: AtScale) -> None:
    target = TARGETS["table-imagenet-renorm-set"]
    with pytest.raises(UserError, match="--lr-controls must name"):
        at_scale(target, lr_controls=())
    with pytest.raises(UserError, match="--corrections shuffled"):
        at_scale(target, corrections=("none", "shuffled"))


def test_both_growth_settings_are_rows_of_the_itop_figure(at_scale: AtScale) -> None:
    arms = at_scale(TARGETS["figure-itop-cifar100"]).arms
    assert arms == [Arm("layer"), Arm("layer", grow_from="corrected"), Arm("none")]


@pytest.mark.parametrize("name", [name for name in TARGETS if name.startswith("figure-")])
def test_figures_show_the_runs_of_tables(name: str, at_scale: AtScale) -> None:
    trained = {
        config
        for table in TARGETS.values()
        if table.name.startswith("table-")
        for config in at_scale(table).configs()
    }
    own = [config for config in at_scale(TARGETS[name]).configs() if config.grow_from == "original"]
    assert set(own) <= trained


def test_arms_are_compared_with_their_baseline() -> None:
    assert Arm("layer", ham=True).baseline == Arm("none", ham=True)
    assert Arm("global").baseline == Arm("layer", grow_from="corrected").baseline == Arm("none")
    assert Arm("none", ham=True).baseline == Arm("none", lr_factor=2.0).baseline == Arm("none")
    assert Arm("none").baseline is None


def test_the_papers_scale_says_so() -> None:
    target = TARGETS["table-cifar100-set"]
    told = sentence(target, Scale.of(target))
    for part in (
        "CIFAR-100",
        "ResNet-20",
        "SET",
        "the paper's 100, 200, 300, 500 epochs",
        "0.9, 0.95, 0.97",
        "3 seeds",
    ):
        assert part in told
    assert "(the paper:" not in told


def test_a_smaller_scale_names_what_the_paper_has() -> None:
    target = TARGETS["table-cifar100-set"]
    scale = replace(
        Scale.of(target),
        epochs=(20, 5),
        sparsities=(0.97,),
        seeds=1,
        fraction_of_data=0.1,
        ham=False,
        width=2.0,
        batch_size=64,
    )
    told = sentence(target, scale)
    for part in (
        *(
            "20, 5 epochs (the paper: 100, 200, 300, 500)",
            "1.25 of 5 epochs",
            "0.97 (the paper: 0.9, 0.95, 0.97)",
        ),
        *("1 seed", "0.1 of the training images", "batch size 64", "width 2", "HAM"),
    ):
        assert part in told


def test_figures_stand_beside_the_papers_only_where_the_runs_are_made_alike(
    at_scale: AtScale, digits: Target
) -> None:
    target = TARGETS["table-cifar100-set"]
    assert at_scale(target, seeds=1, epochs=(20,)).papers
    for change in ({"fraction_of_data": 0.5}, {"width": 2.0}, {"batch_size": 128}):
        assert not at_scale(target, **change).papers
    assert not at_scale(digits).papers


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": (0,)}, "--epochs must be at least 1 each, got 0"),
        ({"epochs": ()}, "--epochs must be at least 1 each, got none"),
        ({"sparsities": (0.9, 1.0)}, "--sparsities must be greater than 0 and less than 1 each, got 0.9, 1"),
        ({"seeds": 0}, "--seeds must be at least 1, got 0"),
        ({"fraction_of_data": 0.0}, "--fraction-of-data must be greater than 0 and at most 1, got 0"),
        ({"corrections": ("none", "globl")}, r"no 'globl' \(did you mean global\?\)"),
        ({"corrections": ("none", "auto")}, "auto chooses layer by layer.*write layer, which it is"),
        ({"corrections": ("layer",)}, "--corrections must include none"),
        ({"lr_controls": (1.0,)}, "--lr-controls must be greater than 0 and other than 1"),
        ({"batch_size": 0}, "--batch-size must be at least 1"),
        ({"width": 0.0}, "--width must be greater than 0"),
    ],
)
def test_what_cannot_be_is_named(change: dict[str, Any], message: str, at_scale: AtScale) -> None:
    with pytest.raises(UserError, match=message):
        at_scale(TARGETS["table-cifar100-rigl"], **change).configs()
