"""The data: official files verified, whole sets on the device, batches that can be made again."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from sparseopt.lab.data.batches import Batch, Pipeline, TensorPipeline
from sparseopt.lab.data.cifar import load_cifar10, load_cifar100
from sparseopt.lab.data.dataset import Dataset
from sparseopt.lab.data.digits import load_digits
from sparseopt.lab.data.imagefolder import SIDE, ImageFolderPipeline, imagenet_folder, own_folder
from sparseopt.lab.data.mnist import load_mnist
from sparseopt.lab.data.share import part_of
from sparseopt.lab.data.text import TextPipeline
from sparseopt.lab.errors import UserError
from sparseopt.lab.system.ranks import ALONE, Ranks

__all__ = ["Batch", "DataName", "Dataset", "Pipeline", "TensorPipeline", "load", "pipeline"]

IMAGE_FOLDER = "imagefolder:"
"""What stands before the path of one's own images."""

DataName = Literal["digits", "mnist", "cifar10", "cifar100", "imagenet", "text"]

_LOADERS: dict[str, Callable[[Path | None], Dataset]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
}


def load(name: str, data_dir: Path | None = None) -> Dataset:
    """A data set that fits into memory, from `data_dir` (default: $SPARSEOPT_DATA), the cache or the network.

    >>> load("digits").train_images.shape
    torch.Size([4000, 1, 28, 28])
    """
    if name not in _LOADERS:
        raise ValueError(f"data must be one of {', '.join(_LOADERS)}, got {name!r}")
    return _LOADERS[name](data_dir)


def pipeline(
    name: DataName | str,
    batch_size: int,
    *,
    seed: int = 0,
    augment: bool | None = None,
    fraction: float = 1.0,
    device: torch.device | None = None,
    data_dir: Path | None = None,
    image_size: int = SIDE,
    ranks: Ranks = ALONE,
) -> Pipeline:
    """This rank's training and test batches; `augment=None` augments where the data set allows it.

    Of the training images the given fraction is used, the same whatever the seed; of the test images, all.
    """
    device = device or torch.device("cpu")
    if batch_size % ranks.size:
        raise UserError(f"--batch-size must be a multiple of the {ranks.size} ranks, got {batch_size}")
    if name == "imagenet" or name.startswith(IMAGE_FOLDER):
        own = name.removeprefix(IMAGE_FOLDER)
        return ImageFolderPipeline(
            *(imagenet_folder(data_dir) if name == "imagenet" else own_folder(own), batch_size),
            side=image_size,
            seed=seed,
            augment=augment is not False,
            fraction=fraction,
            device=device,
            ranks=ranks,
        )
    if name == "text":
        return TextPipeline(batch_size, seed=seed, fraction=fraction, device=device, ranks=ranks)
    dataset = part_of(load(name, data_dir), fraction)
    augment = dataset.augmented if augment is None else augment
    return TensorPipeline(dataset, batch_size, seed=seed, augment=augment, device=device, ranks=ranks)
