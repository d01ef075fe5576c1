"""A data set small enough to be held whole: every image and label as one tensor."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Images as uint8 tensors (N, channels, height, width) with their labels, and how to normalise them."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmented: bool
    """Do a shifted and a mirrored image show the same thing? Of a truck yes, of a digit no."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of one image."""
        return tuple(self.train_images.shape[1:])
