"""The text recipe: a decoder on Python's own help, through the same trainer as the images."""

import dataclasses

import pytest
import torch

pytest.importorskip("tyro", reason="the lab is not installed")

from sparseopt.lab.commands import flops as flops_command
from sparseopt.lab.config.recipes import RECIPES
from sparseopt.lab.data.text import CONTEXT, TextPipeline, load_text
from sparseopt.lab.errors import UserError
from sparseopt.lab.system.ranks import Ranks
from sparseopt.lab.training.experiment import build
from sparseopt.lab.training.metrics import right
from sparseopt.lab.training.trainer import Trainer

CPU = torch.device("cpu")


def test_batches_depend_on_seed_and_epoch_and_follow_one_another() -> None:
    data = TextPipeline(8, fraction=0.05, device=CPU)
    batches = list(data.train_batches(1))
    assert len(batches) == data.steps_per_epoch
    x, y = batches[3]
    assert x.shape == y.shape == (8, CONTEXT)
    assert torch.equal(x[:, 1:], y[:, :-1]), "the character after each"
    again = next(iter(data.train_batches(1, start=3)))
    assert torch.equal(again[0], x)
    assert not torch.equal(next(iter(data.train_batches(2, start=3)))[0], x)


def test_the_test_text_is_read_once_by_all_ranks_together() -> None:
    alone = torch.cat([x for x, _ in TextPipeline(8, device=CPU).test_batches()])
    shares = [
        torch.cat([x for x, _ in TextPipeline(8, device=CPU, ranks=Ranks(rank, 2)).test_batches()])
        for rank in range(2)
    ]
    assert sum(len(share) for share in shares) == len(alone) == TextPipeline(8, device=CPU).test_images
    assert torch.equal(alone.flatten(), load_text().test[: alone.numel()])


def test_it_trains() -> None:
    config = dataclasses.replace(
        RECIPES["text-decoder"], epochs=1, data_fraction=0.05, width=0.25, every=5, lr=5e-3, warmup_epochs=0.0
    )
    trainer = Trainer(build(config))
    trainer.run()
    row = trainer.rows[-1]
    assert row["test_loss"] < 4.0  # chance: ln 96 = 4.56
    assert 0 < row["test_accuracy"] < 1
    assert row["sparsity"] == pytest.approx(0.9, abs=1e-3)


def test_answers_that_are_several_count_by_their_share() -> None:
    scores = torch.eye(3).unsqueeze(0).expand(2, 3, 3)  # says 0, 1, 2
    y = torch.tensor([[0, 1, 2], [0, 0, 0]])
    assert right(scores, y).item() == pytest.approx(1 + 1 / 3)


def test_decoder_and_text_go_together() -> None:
    with pytest.raises(UserError, match=r"--model decoder .*--data text"):
        build(dataclasses.replace(RECIPES["text-decoder"], model="mlp"))


def test_flops_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert flops_command.main(["text-decoder", "--sparsity", "0.9"]) == 0
    assert "text-decoder" in capsys.readouterr().out


def test_the_recipe_corrects_nothing_behind_layer_norm(caplog: pytest.LogCaptureFixture) -> None:
    recipe = dataclasses.replace(RECIPES["text-decoder"], method="set", data_fraction=0.05, width=0.25)
    experiment = build(recipe)
    assert experiment.topology is not None
    assert not experiment.topology.normed
    assert "no skew correction" in caplog.text
