"""Tensors as arguments of the kernels: the library trusts its arguments, so every tensor is checked on the way to its address."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from sparseopt.kernels.native.interface import Image

SHORT = torch.int32
LONG = torch.int64
FLOAT = torch.float32
DOUBLE = torch.float64


def address(tensor: Tensor, dtype: torch.dtype, *sizes: int) -> int:
    """Of a contiguous tensor of this type and, if sizes are given, of these sizes, on the CPU."""
    if tensor.dtype is not dtype or not tensor.is_contiguous() or not tensor.is_cpu:
        name = "float" if dtype is FLOAT else str(dtype).removeprefix("torch.")
        raise RuntimeError(
            f"expected a contiguous {name} tensor on the CPU, got {tensor.dtype} of shape {tuple(tensor.shape)} and strides "
            f"{tensor.stride()} on {tensor.device}"
        )
    if sizes and tensor.shape != sizes:
        raise RuntimeError(f"expected a tensor of shape {sizes}, got {tuple(tensor.shape)}")
    return tensor.data_ptr()


def optional(tensor: Tensor | None, dtype: torch.dtype, *sizes: int) -> int | None:
    return None if tensor is None else address(tensor, dtype, *sizes)


def addresses(values: Sequence[int | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(values))(*values)


def require(holds: bool, what: str) -> None:
    if not holds:
        raise RuntimeError(f"the kernels take tensors that fit one another: {what}")


class Lanes:
    """Tensors in the layout of `csrc/layout.h`, for one number of lanes."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._alignment = 4 * lanes

    def blocks(self, samples: int) -> int:
        return -(-samples // self.lanes)

    def image(self, tensor: Tensor, border: int) -> Image:
        """[block, row, channel, column, lane]"""
        found = self._aligned(tensor)
        shape = tensor.shape
        image = Image(found, shape[0], shape[1] - 2 * border, shape[2], shape[3] - 2 * border, border)
        require(border >= 0 and image.height > 0 and image.width > 0, "a border leaves nothing of an image")
        return image

    def like(self, tensor: Tensor, border: int, other: Image) -> Image:
        """An image of the same size, though perhaps of another border."""
        image = self.image(tensor, border)
        require(sizes(image) == sizes(other), "two images differ in size")
        return image

    def tiles(self, tensor: Tensor, vectors: int, features: int) -> int:
        """Tiles of samples, see `csrc/linear.h`: [vector of samples, 1, feature, 1, lane]"""
        found = self._aligned(tensor)
        require(tensor.shape[:4] == (vectors, 1, features, 1), "tiles of another size")
        return found

    def _aligned(self, tensor: Tensor) -> int:
        found = address(tensor, FLOAT)
        if tensor.dim() != 5 or tensor.shape[4] != self.lanes or found % self._alignment:
            raise RuntimeError(
                "expected a contiguous float tensor [block, row, channel, column, "
                f"{self.lanes}], aligned, got {tuple(tensor.shape)}"
            )
        return found


def sizes(image: Image) -> tuple[int, int, int, int]:
    return image.blocks, image.height, image.channels, image.width
