"""Tensors as arguments of the kernels: the library trusts its arguments, so every tensor is checked on the way to its address."""

import ctypes
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from sparseopt.kernels.native.interface import Image

SHORT = torch.int32
FLOAT = torch.float32
HALF = torch.bfloat16
DOUBLE = torch.float64


def address(tensor: Tensor, dtype: torch.dtype, *sizes: int) -> int:
    """Of a contiguous tensor of this type and, if sizes are given, of these sizes, on the CPU."""
    if (
        tensor.dtype is dtype
        and tensor.is_contiguous()
        and tensor.is_cpu
        and (not sizes or tensor.shape == sizes)
    ):
        return tensor.data_ptr()
    name = "float" if dtype is FLOAT else str(dtype).removeprefix("torch.")
    raise RuntimeError(
        f"expected a contiguous {name} tensor on the CPU{f' of shape {sizes}' if sizes else ''}, got {tensor.dtype} of shape "
        f"{tuple(tensor.shape)} and strides {tensor.stride()} on {tensor.device}"
    )


def optional(tensor: Tensor | None, dtype: torch.dtype, *sizes: int) -> int:
    return 0 if tensor is None else address(tensor, dtype, *sizes)


def addresses(values: Sequence[int | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(values))(*values)


new_image = partial(tuple.__new__, Image)  # without the detour over Python that a named tuple's own takes


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

    def image(self, tensor: Tensor, border: int, *, half: bool = False) -> Image:
        """[block, row, channel, column, lane]; `half`: it may be in half precision."""
        known = tensor.dtype is FLOAT or (half and tensor.dtype is HALF)
        if tensor.dim() == 5 and known and tensor.is_contiguous() and tensor.is_cpu:
            blocks, rows, channels, columns, lanes = tensor.shape
            at, height, width = tensor.data_ptr(), rows - 2 * border, columns - 2 * border
            if lanes == self.lanes and not at % self._alignment and border >= 0 and height > 0 and width > 0:
                return new_image((at, blocks, height, channels, width, border, tensor.dtype is HALF))
        raise RuntimeError(
            f"expected a contiguous float tensor [block, row, channel, column, {self.lanes}], aligned, of an image with "
            f"a border of {border}, got {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
        )

    def like(self, tensor: Tensor, border: int, other: Image, *, half: bool = False) -> Image:
        """An image of the same size, though perhaps of another border."""
        image = self.image(tensor, border, half=half)
        require(image[1:5] == other[1:5], "two images differ in size")
        return image

    def tiles(self, tensor: Tensor, vectors: int, features: int) -> int:
        """Tiles of samples, see `csrc/linear.h`: [vector of samples, 1, feature, 1, lane]"""
        at = address(tensor, FLOAT, vectors, 1, features, 1, self.lanes)
        require(not at % self._alignment, "tiles that are not aligned")
        return at
