"""MNIST: four gzipped files in the idx format, 60,000 + 10,000 digits (LeCun et al. 1998)."""

import gzip
from pathlib import Path

import torch
from torch import Tensor

from sparseopt.lab.data.dataset import Dataset
from sparseopt.lab.data.fetch import OfficialFile, read_file

SIDE = 28
MEAN, STD = (0.1307,), (0.3081,)
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"  # the original server refuses downloads
SUBFOLDERS = ("mnist", "MNIST/raw")  # ours and torchvision's


def _file(name: str, md5: str) -> OfficialFile:
    return OfficialFile(name, md5, MIRROR + name)


TRAIN_IMAGES = _file("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873")
TRAIN_LABELS = _file("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432")
TEST_IMAGES = _file("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3")
TEST_LABELS = _file("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c")


def load_mnist(data_dir: Path | None = None) -> Dataset:
    """MNIST from the official files."""

    def read(file: OfficialFile) -> Tensor:
        return parse_idx(gzip.decompress(read_file(file, data_dir, SUBFOLDERS)))

    train_images, test_images = read(TRAIN_IMAGES).unsqueeze(1), read(TEST_IMAGES).unsqueeze(1)
    train_labels, test_labels = read(TRAIN_LABELS).long(), read(TEST_LABELS).long()
    return Dataset(
        "mnist", train_images, train_labels, test_images, test_labels, 10, MEAN, STD, augmented=False
    )


def parse_idx(contents: bytes) -> Tensor:
    """An idx file of unsigned bytes: two zeros, the type 8, the number of axes, their lengths, the data."""
    axes = contents[3]
    lengths = [int.from_bytes(contents[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes)]
    return torch.frombuffer(bytearray(contents[4 + 4 * axes :]), dtype=torch.uint8).reshape(lengths)
