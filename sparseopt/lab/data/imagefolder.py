"""Images in folders, `train/CLASS/*` and `val/CLASS/*`, decoded and augmented by torchvision: ImageNet-1k, or your own.

The randomness of an image's crop is keyed by (seed, epoch, image), not by the worker that happens to decode
it: the number of workers changes the speed and nothing else.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from sparseopt.lab.data.batches import Batch
from sparseopt.lab.data.fetch import search_path
from sparseopt.lab.data.share import share
from sparseopt.lab.errors import UserError
from sparseopt.lab.system.ranks import ALONE, Ranks
from sparseopt.topology import generator

SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TEST_BATCH = 256


class ImageFolderPipeline:
    """Batches from a folder; the last images of an epoch that fill no batch are left out."""

    def __init__(
        self,
        root: Path,
        batch_size: int,
        *,
        side: int = SIDE,
        seed: int,
        augment: bool,
        device: torch.device,
        fraction: float = 1.0,
        ranks: Ranks = ALONE,
    ) -> None:
        vision = _torchvision()
        still = _still(vision, side)
        moving = _moving(vision, side) if augment else still
        self._train = _Keyed(_images(vision, root / "train"), moving, seed)
        self._test = _Keyed(_images(vision, root / "val"), still, seed)
        self.shape: tuple[int, ...] = (3, side, side)
        self.classes = len(self._train.images.classes)
        if self._test.images.classes != self._train.images.classes:
            raise UserError(
                f"{root}/train and {root}/val must have the same classes; not in both: "
                f"{', '.join(sorted(set(self._train.images.classes) ^ set(self._test.images.classes))[:5])}"
            )
        self._used = share(torch.tensor(self._train.images.targets), fraction)
        self.steps_per_epoch = len(self._used) // batch_size
        self.test_images = len(self._test)
        if not 1 <= batch_size <= len(self._used):
            raise UserError(
                f"--batch-size must be between 1 and {len(self._used)}, the images that are used, got {batch_size}"
            )
        self._batch_size, self._seed, self._device, self._ranks = batch_size, seed, device, ranks

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        order = torch.randperm(len(self._used), generator=generator(self._seed, "order", epoch))
        self._train.epoch = epoch
        size, ranks = self._batch_size, self._ranks
        batches = [
            range(first, first + size) for first in range(start * size, self.steps_per_epoch * size, size)
        ]
        images = self._used[order].tolist()
        used = [image for batch in batches for image in images[ranks.share(batch)]]
        yield from self._load(self._train, used, size // ranks.size)

    def test_batches(self) -> Iterator[Batch]:
        yield from self._load(
            self._test, list(range(len(self._test)))[self._ranks.rank :: self._ranks.size], TEST_BATCH
        )

    def _load(self, images: "_Keyed", order: list[int], batch_size: int) -> Iterator[Batch]:
        pinned = self._device.type == "cuda"
        loader = DataLoader(images, batch_size, sampler=order, num_workers=_workers(), pin_memory=pinned)
        for pixels, labels in loader:
            yield pixels.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)


class _Keyed(TorchDataset[tuple[Tensor, int]]):
    """Images whose random transform depends on (seed, epoch, image) alone."""

    def __init__(self, images: Any, transform: Any, seed: int) -> None:
        self.images, self.transform, self.seed, self.epoch = images, transform, seed, 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.images[index]
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            torch.random.set_rng_state(generator(self.seed, "augment", self.epoch, index).get_state())
            return self.transform(image), label


def _workers() -> int:
    """Processes that decode for this rank: the machine's cores, shared by the ranks on it."""
    return (os.cpu_count() or 0) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _images(vision: Any, folder: Path) -> Any:
    """The images of a folder, a class a subfolder, as PIL images."""
    return vision.datasets.ImageFolder(str(folder))


def _moving(vision: Any, side: int) -> Any:
    v2 = vision.transforms.v2
    return v2.Compose([v2.RandomResizedCrop(side), v2.RandomHorizontalFlip(), *_to_tensor(v2)])


def _still(vision: Any, side: int) -> Any:
    """As ImageNet has it: the shorter side 256 / 224 of what is cut out of the middle."""
    v2 = vision.transforms.v2
    return v2.Compose([v2.Resize(round(side * 256 / 224)), v2.CenterCrop(side), *_to_tensor(v2)])


def _to_tensor(v2: Any) -> list[Any]:
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def _torchvision() -> Any:
    try:
        import torchvision  # pyright: ignore[reportMissingImports]
        import torchvision.transforms.v2  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise UserError(
            "images in folders need torchvision, which is not installed: pip install 'sparseopt[imagenet]'"
        ) from error
    except RuntimeError as error:  # built for another torch
        raise UserError(
            f"torchvision does not fit torch {torch.__version__} ({error}); install the two together from one index"
        ) from error
    return torchvision


def own_folder(path: str) -> Path:
    """The folder of one's own images; refused where it is none."""
    root = Path(path).expanduser()
    for part in ("train", "val"):
        if not (root / part).is_dir():
            raise UserError(
                f"--data imagefolder:{path}: there is no folder {root / part}; images are expected as train/CLASS/* and "
                "val/CLASS/*"
            )
    return root


def imagenet_folder(data_dir: Path | None) -> Path:
    for folder in search_path(data_dir):
        for root in (folder, folder / "imagenet"):
            if (root / "train").is_dir() and (root / "val").is_dir():
                return root
    raise UserError(
        "imagenet is not downloaded for you: name, with --data-dir, a folder with train/WNID/*.JPEG and "
        "val/WNID/*.JPEG"
    )
