"""1,797 handwritten digits of 8 x 8 pixels, which come with scikit-learn: real data for the examples, no download."""

from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Sampler, TensorDataset

TRAINING = 1500


def load() -> tuple[TensorDataset, TensorDataset]:
    """Training and test digits: images (1, 8, 8) with pixels between 0 and 1, and labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    return TensorDataset(images[:TRAINING], labels[:TRAINING]), TensorDataset(
        images[TRAINING:], labels[TRAINING:]
    )


class ShuffledByEpoch(Sampler[int]):
    """An order that depends on the epoch alone, so that a resumed run sees the batches of the uninterrupted one."""

    def __init__(self, images: int) -> None:
        self.images, self.epoch = images, 0

    def __len__(self) -> int:
        return self.images

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.images, generator=torch.Generator().manual_seed(self.epoch)).tolist())
