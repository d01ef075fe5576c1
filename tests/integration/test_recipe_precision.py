"""A recipe in bfloat16: weights, gradients and masks stay what they are in float32."""

import dataclasses
import math

import pytest
import torch

pytest.importorskip("tyro", reason="the lab is not installed")

from sparseopt.lab.config.recipes import RECIPES, Config
from sparseopt.lab.training.train import Summary, train

SHORT = dataclasses.replace(RECIPES["digits-mlp"], epochs=2, hidden=(64,), warmup_epochs=0.5, every=10)


def trained(config: Config) -> Summary:
    summary = train(config)
    assert summary.experiment is not None
    return summary


@pytest.mark.parametrize("method", ["dense", "set", "rigl"])
def test_a_run_in_bfloat16_learns_and_keeps_its_weights_in_float32(method: str) -> None:
    summary = trained(dataclasses.replace(SHORT, precision="bfloat16", method=method))
    assert summary.result["test_accuracy"] > 0.6  # chance: 0.1
    assert math.isfinite(summary.rows[-1]["train_loss"])
    experiment = summary.experiment
    assert experiment is not None
    assert all(parameter.dtype == torch.float32 for parameter in experiment.model.parameters())
    if experiment.topology is not None:
        for name, mask in experiment.topology.masks.items():
            assert int(mask.sum()) == experiment.topology.active(name)
            assert not experiment.topology.parameters[name].detach()[~mask].any()


def test_the_products_are_rounded() -> None:
    """The two precisions share the first weights and masks, and part with the first products."""
    exact, rounded = (
        trained(dataclasses.replace(SHORT, precision=p, epochs=1)) for p in ("float32", "bfloat16")
    )
    assert exact.rows[0]["train_loss"] != rounded.rows[0]["train_loss"]
    assert exact.rows[0]["train_loss"] == pytest.approx(rounded.rows[0]["train_loss"], rel=0.05)


def test_bfloat16_repeats_bit_for_bit() -> None:
    first, second = (trained(dataclasses.replace(SHORT, precision="bfloat16", epochs=1)) for _ in range(2))
    assert first.experiment is not None
    assert second.experiment is not None
    again = second.experiment.model.state_dict()
    for name, value in first.experiment.model.state_dict().items():
        assert torch.equal(value, again[name]), name
