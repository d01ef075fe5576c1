import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparseopt.lab.data import Dataset, TensorPipeline, pipeline
from sparseopt.lab.data.batches import crop_and_mirror
from sparseopt.lab.data.share import share
from sparseopt.lab.errors import UserError

CPU = torch.device("cpu")


def numbered(images: int = 10, *, side: int = 4) -> Dataset:
    """A data set whose image i is all i, with label i."""
    pixels = torch.arange(images, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, side, side)
    labels = torch.arange(images)
    return Dataset(
        "numbered", pixels, labels, pixels[:3], labels[:3], images, (0.0,), (1.0,), augmented=False
    )


def batches(
    seed: int = 0, epoch: int = 0, start: int = 0, *, augment: bool = False
) -> list[tuple[Tensor, Tensor]]:
    made = TensorPipeline(numbered(), 4, seed=seed, augment=augment, device=CPU)
    return list(made.train_batches(epoch, start))


def labels(made: list[tuple[Tensor, Tensor]]) -> list[int]:
    return torch.cat([label for _, label in made]).tolist()


def test_an_epoch_shows_every_image_at_most_once_in_whole_batches() -> None:
    shown = labels(batches())
    assert len(shown) == len(set(shown)) == 8
    assert [len(label) for _, label in batches()] == [4, 4]


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    assert labels(batches()) == labels(batches())
    assert labels(batches(seed=1)) != labels(batches())
    assert labels(batches(epoch=1)) != labels(batches())


def test_an_epoch_can_be_entered_in_the_middle() -> None:
    whole, rest = batches(augment=True), batches(start=1, augment=True)
    assert len(rest) == 1
    assert torch.equal(rest[0][0], whole[1][0])
    assert torch.equal(rest[0][1], whole[1][1])


def test_images_keep_their_labels_and_are_normalised() -> None:
    dataset = replace(numbered(), mean=(0.5,), std=(0.25,))
    made = TensorPipeline(dataset, 5, seed=0, augment=False, device=CPU)
    for image, label in [*made.train_batches(0), *made.test_batches()]:
        expected = (label.double() / 255 - 0.5) / 0.25
        assert image.dtype == torch.float32
        assert torch.allclose(image.double().mean((1, 2, 3)), expected, atol=1e-6)


def test_the_test_set_is_shown_once_and_in_order() -> None:
    made = TensorPipeline(numbered(), 4, seed=0, augment=True, device=CPU)
    assert labels(list(made.test_batches())) == [0, 1, 2]


def test_crops_and_mirrors_are_those_of_the_definition() -> None:
    images = torch.randint(1, 256, (40, 3, 8, 8), dtype=torch.uint8)
    top, left = torch.randint(9, (2, 40))
    mirrored = torch.rand(40) < 0.5
    made = crop_and_mirror(images, top, left, mirrored)
    for number, image in enumerate(images):
        canvas = torch.zeros(3, 16, 16, dtype=torch.uint8)
        canvas[:, 4:12, 4:12] = image
        expected = canvas[:, top[number] : top[number] + 8, left[number] : left[number] + 8]
        assert torch.equal(made[number], expected.flip(-1) if mirrored[number] else expected)


def test_augmentation_differs_between_epochs_and_covers_every_shift() -> None:
    from sparseopt.lab.data.batches import EpochPlan

    plan = EpochPlan.draw(0, 0, 10_000, CPU)
    assert plan.top.unique().tolist() == plan.left.unique().tolist() == list(range(9))
    assert 0.45 < plan.mirrored.double().mean() < 0.55
    assert not torch.equal(plan.top, EpochPlan.draw(0, 1, 10_000, CPU).top)


def test_digits_are_never_mirrored_by_default() -> None:
    original = {image.numpy().tobytes() for image in _pixels(pipeline("digits", 500, augment=False))}
    shown = {image.numpy().tobytes() for image in _pixels(pipeline("digits", 500))}
    assert shown == original


def _pixels(made: object) -> Tensor:
    assert isinstance(made, TensorPipeline)
    return torch.cat([image for image, _ in made.train_batches(0)])


def test_a_share_of_the_data_has_as_many_of_every_class_whatever_the_seed() -> None:
    tenths = [pipeline("digits", 50, fraction=0.1, seed=seed) for seed in (0, 1)]
    whole = pipeline("digits", 50)
    assert [made.steps_per_epoch for made in tenths] == [8, 8]
    shown = [{image.numpy().tobytes() for image in _pixels(made)} for made in tenths]
    assert len(shown[0]) == 400
    assert shown[0] == shown[1]
    assert shown[0] < {image.numpy().tobytes() for image in _pixels(whole)}
    labels = torch.cat([label for _, label in tenths[0].train_batches(0)])
    assert labels.bincount().tolist() == [40] * 10
    tests = [torch.cat([label for _, label in made.test_batches()]) for made in (tenths[0], whole)]
    assert torch.equal(*tests)


def test_a_smaller_share_is_part_of_a_larger_one() -> None:
    classes = torch.tensor([0] * 30 + [1] * 7).roll(11)
    small, large = (set(share(classes, fraction).tolist()) for fraction in (0.2, 0.6))
    assert small < large
    assert classes[list(small)].bincount().tolist() == [6, 1]
    assert share(classes, 1.0).tolist() == list(range(37))


@pytest.mark.parametrize("batch_size", [0, 11])
def test_a_batch_size_that_cannot_be_is_refused(batch_size: int) -> None:
    with pytest.raises(UserError, match=r"--batch-size .*1 and 10"):
        TensorPipeline(numbered(), batch_size, seed=0, augment=False, device=CPU)


def test_imagenet_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSEOPT_DATA", raising=False)
    monkeypatch.setenv("SPARSEOPT_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="--data-dir"):
        pipeline("imagenet", 2)


@pytest.mark.skipif(bool(importlib.util.find_spec("torchvision")), reason="torchvision is here")
def test_a_folder_of_images_says_that_torchvision_is_missing(tmp_path: Path) -> None:
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
    with pytest.raises(UserError, match="torchvision"):
        pipeline("imagenet", 2, data_dir=tmp_path)
