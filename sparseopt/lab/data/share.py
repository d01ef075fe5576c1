"""A share of the training images: the same for every run, of every class alike.

Each class is put in an order that is drawn once and for all, and its first images are taken. A smaller share is
therefore part of every larger one.
"""

from dataclasses import replace

import torch
from torch import Tensor

from sparseopt.lab.data.dataset import Dataset
from sparseopt.topology import generator


def share(labels: Tensor, fraction: float) -> Tensor:
    """The images, in their order, that make up this fraction of every class, rounded, and at least one of each.

    >>> [share(torch.tensor([0, 0, 1, 0, 1, 0]), fraction).numel() for fraction in (0.5, 0.01, 1.0)]
    [3, 2, 6]
    """
    shuffled = torch.randperm(len(labels), generator=generator(0, "share"))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    counts = labels.bincount()
    within = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    taken = (fraction * counts).round().clamp(min=1)
    return by_class[within < taken.repeat_interleave(counts)].sort().values


def part_of(dataset: Dataset, fraction: float) -> Dataset:
    """The data set with this share of its training images, and all of its test images."""
    if fraction == 1:
        return dataset
    used = share(dataset.train_labels, fraction)
    images, labels = dataset.train_images[used], dataset.train_labels[used]
    return replace(dataset, train_images=images, train_labels=labels)
