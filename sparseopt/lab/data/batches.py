"""Batches without workers: the whole data set lies on the device, and so does the work on it.

Order, crops and flips are pure functions of (seed, epoch): they are drawn once an epoch, moved to the device
once, and batch k reads its slice of them. Any batch of any epoch can therefore be made again, which is what
resuming in the middle of an epoch takes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparseopt.lab.data.dataset import Dataset
from sparseopt.lab.errors import UserError
from sparseopt.lab.system.ranks import ALONE, Ranks
from sparseopt.topology import generator

PADDING = 4
TEST_BATCH = 1000

Batch = tuple[Tensor, Tensor]


class Pipeline(Protocol):
    """What training reads from: normalised images and labels, on the device, in a reproducible order.

    Where several ranks train together, each reads its own share of every training batch, and its own of the test set.
    """

    shape: tuple[int, ...]
    classes: int
    steps_per_epoch: int
    test_images: int
    """How many there are in the test set, over all ranks."""

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The training batches of an epoch, from the given one on."""
        ...

    def test_batches(self) -> Iterator[Batch]:
        """The test set: over all ranks, each image once."""
        ...


@dataclass(frozen=True)
class EpochPlan:
    """All random decisions of one epoch, in the order of its images."""

    order: Tensor
    top: Tensor
    left: Tensor
    mirrored: Tensor

    @classmethod
    def draw(cls, seed: int, epoch: int, images: int, device: torch.device) -> "EpochPlan":
        order = torch.randperm(images, generator=generator(seed, "order", epoch))
        draws = generator(seed, "augment", epoch)
        top, left = torch.randint(2 * PADDING + 1, (2, images), generator=draws)
        mirrored = torch.rand(images, generator=draws) < 0.5
        return cls(*(decision.to(device) for decision in (order, top, left, mirrored)))

    def __getitem__(self, images: slice) -> "EpochPlan":
        return EpochPlan(self.order[images], self.top[images], self.left[images], self.mirrored[images])


class TensorPipeline:
    """Batches of a `Dataset` that fits on the device.

    The last images of an epoch that fill no batch are left out. Every epoch has its own order, so it is not
    always the same images that are left out.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        seed: int,
        augment: bool,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        images = len(dataset.train_images)
        if not 1 <= batch_size <= images:
            raise UserError(
                f"--batch-size must be between 1 and {images}, the images of {dataset.name} that are used, got {batch_size}"
            )
        self.shape = dataset.shape
        self.classes = dataset.classes
        self.steps_per_epoch = images // batch_size
        self.test_images = len(dataset.test_images)
        self._batch_size, self._seed, self._augment = batch_size, seed, augment
        self._device, self._ranks = device, ranks
        self._train = (dataset.train_images.to(device), dataset.train_labels.to(device))
        self._test = (dataset.test_images.to(device), dataset.test_labels.to(device))
        self._scale, self._shift = _normalisation(dataset, device)

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        images, labels = self._train
        plan = EpochPlan.draw(self._seed, epoch, len(images), self._device)
        for batch in range(start, self.steps_per_epoch):
            first = batch * self._batch_size
            decisions = plan[self._ranks.share(range(first, first + self._batch_size))]
            chosen = images[decisions.order]
            if self._augment:
                chosen = crop_and_mirror(chosen, decisions.top, decisions.left, decisions.mirrored)
            yield self._normalised(chosen), labels[decisions.order]

    def test_batches(self) -> Iterator[Batch]:
        images, labels = (part[self._ranks.rank :: self._ranks.size] for part in self._test)
        for pixels, truth in zip(images.split(TEST_BATCH), labels.split(TEST_BATCH), strict=True):
            yield self._normalised(pixels), truth

    def _normalised(self, images: Tensor) -> Tensor:
        return images.float().mul_(self._scale).add_(self._shift)


def crop_and_mirror(images: Tensor, top: Tensor, left: Tensor, mirrored: Tensor) -> Tensor:
    """Pad each image with zeros, cut its own window of the old size out of it, mirror it if so decided.

    All windows of all images form one strided view, of which indexing copies those that are wanted.
    """
    height, width = images.shape[-2:]
    padded = pad(images, (PADDING,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (image, channel, top, left, height, width)
    cropped = windows[torch.arange(len(images), device=images.device), :, top, left]
    return torch.where(mirrored[:, None, None, None], cropped.flip(-1), cropped)


def _normalisation(dataset: Dataset, device: torch.device) -> tuple[Tensor, Tensor]:
    """(x / 255 - mean) / std as one multiplication and one addition."""
    mean = torch.tensor(dataset.mean, device=device).view(-1, 1, 1)
    std = torch.tensor(dataset.std, device=device).view(-1, 1, 1)
    return 1 / (255 * std), -mean / std
