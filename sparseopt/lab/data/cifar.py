"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32, as python pickles.

A pickle can run code when it is read. These are read only after their md5 has been verified, and by an
unpickler that can make nothing but numpy arrays, so that not even a forged file of the right md5 lets code in.
"""

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy._core.multiarray import _reconstruct  # pyright: ignore[reportAttributeAccessIssue]
from torch import Tensor

from sparseopt.lab.data.dataset import Dataset
from sparseopt.lab.data.fetch import OfficialArchive, OfficialFile, read_members

SERVER = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class CifarFiles:
    """Where a CIFAR data set keeps its parts, and what is known of it."""

    archive: OfficialArchive
    train: tuple[str, ...]
    test: str
    labels: str
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


CIFAR10 = CifarFiles(
    OfficialArchive(
        OfficialFile(
            "cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            SERVER + "cifar-10-python.tar.gz",
        ),
        "cifar-10-batches-py",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    labels="labels",
    classes=10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)

CIFAR100 = CifarFiles(
    OfficialArchive(
        OfficialFile(
            "cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            SERVER + "cifar-100-python.tar.gz",
        ),
        "cifar-100-python",
        {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    ),
    train=("train",),
    test="test",
    labels="fine_labels",
    classes=100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def load_cifar10(data_dir: Path | None = None) -> Dataset:
    """CIFAR-10 from the official files."""
    return _load("cifar10", CIFAR10, data_dir)


def load_cifar100(data_dir: Path | None = None) -> Dataset:
    """CIFAR-100, with its 100 fine labels, from the official files."""
    return _load("cifar100", CIFAR100, data_dir)


def _load(name: str, layout: CifarFiles, data_dir: Path | None) -> Dataset:
    members = read_members(layout.archive, data_dir)
    parts = [_images_and_labels(members[part], layout.labels) for part in layout.train]
    train_images, train_labels = (
        torch.cat([part[0] for part in parts]),
        torch.cat([part[1] for part in parts]),
    )
    test_images, test_labels = _images_and_labels(members[layout.test], layout.labels)
    return Dataset(
        name,
        *(train_images, train_labels, test_images, test_labels),
        *(layout.classes, layout.mean, layout.std),
        augmented=True,
    )


def _images_and_labels(contents: bytes, labels: str) -> tuple[Tensor, Tensor]:
    batch = ArrayUnpickler(io.BytesIO(contents), encoding="latin1").load()
    images = torch.from_numpy(batch["data"]).reshape(-1, 3, 32, 32)
    return images, torch.tensor(batch[labels])


class ArrayUnpickler(pickle.Unpickler):
    """Reads containers, strings, numbers and numpy arrays; anything else that a pickle names is refused."""

    ALLOWED: ClassVar = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self.ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"refused to load {module_name}.{global_name}") from None
