"""What the analyses show their networks: real digits, or Gaussian noise where theory wants independent inputs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from sparseopt.lab.data import Dataset, load
from sparseopt.lab.data.fetch import search_path
from sparseopt.lab.data.mnist import SUBFOLDERS, TRAIN_IMAGES
from sparseopt.lab.errors import UserError
from sparseopt.topology import generator

Source = Literal["mnist", "gaussian"]


@dataclass(frozen=True)
class Inputs:
    """Batches of flattened, normalised images (batches, size, pixels) and labels, and where they come from."""

    images: Tensor
    labels: Tensor
    name: str


def digits(data_dir: Path | None) -> Dataset:
    """MNIST if its files are at hand (nothing is downloaded), else the embedded digits."""
    return load("mnist" if _mnist_is_here(data_dir) else "digits", data_dir)


def batches(source: Source, data_dir: Path | None, number: int, size: int, seed: int) -> Inputs:
    """Random batches of training images; for "gaussian" the labels are real and the pixels are noise."""
    dataset = digits(data_dir)
    images, labels = dataset.train_images.flatten(1), dataset.train_labels
    if size > len(images):
        raise UserError(
            f"--batch-size must be at most {len(images)}, the images of {dataset.name}; got {size}"
        )
    order = torch.cat(
        [torch.randperm(len(images), generator=generator(seed, "batch", b))[:size] for b in range(number)]
    )
    labels = labels[order].view(number, size)
    if source == "gaussian":
        noise = torch.randn(number, size, images.shape[1], generator=generator(seed, "pixels"))
        return Inputs(noise, labels, f"Gaussian noise with the labels of {_described(dataset)}")
    pixels = (images[order].float() / 255 - dataset.mean[0]) / dataset.std[0]
    return Inputs(pixels.view(number, size, -1), labels, _described(dataset))


def _described(dataset: Dataset) -> str:
    number = len(dataset.train_images)
    return (
        f"MNIST ({number:,} images)"
        if dataset.name == "mnist"
        else f"the embedded digits ({number:,} images of MNIST)"
    )


def _mnist_is_here(data_dir: Path | None) -> bool:
    places = [folder / sub for folder in search_path(data_dir) for sub in ("", *SUBFOLDERS)]
    return any((place / TRAIN_IMAGES.name).is_file() for place in places)
