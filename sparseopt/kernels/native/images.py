"""What is checked of images in Python, because the kernels trust their shapes."""

from torch import Tensor

from sparseopt.kernels.native.buffers import Shape


def check_image(image: Tensor, channels: int) -> None:
    """A batch of images with as many channels as the first layer reads."""
    if image.dim() != 4 or image.shape[1] != channels:
        raise RuntimeError(
            f"expected a batch of images (N, {channels}, height, width), got shape {tuple(image.shape)}"
        )


def check_sum(size: tuple[int, int], added: Shape, stride: int) -> None:
    """A residual sum adds images of one size; torch would broadcast the smaller one."""
    other = (-(-added.height // stride), -(-added.width // stride))
    if size != other:
        raise ValueError(
            f"a residual sum of images of size {size} and {other}: the kernels add equal sizes only; "
            "use the model without accelerate"
        )
