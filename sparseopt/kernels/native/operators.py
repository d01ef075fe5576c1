"""The kernels as Python functions on tensors. All write into tensors they are given.

These are the places that call the library: shapes, types, contiguity and alignment are checked here, at every call.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparseopt.kernels.native.arguments import FLOAT, SHORT, address, require
from sparseopt.kernels.native.conv_operators import ConvOperators
from sparseopt.kernels.native.interface import Integer, words
from sparseopt.kernels.native.linear_operators import LinearOperators
from sparseopt.kernels.native.loaded import flat
from sparseopt.kernels.native.network import NativeChain, Network, TileSize, tiles
from sparseopt.kernels.native.tape import call


class Operators(ConvOperators, LinearOperators):
    """All functions of one loaded library."""

    def network(self, *tables: Any) -> Network:
        """A frozen region, see `Network`."""
        return Network(self._library, *tables)

    def chain(self, *tables: Any) -> NativeChain:
        """A frozen chain, see `NativeChain`."""
        return NativeChain(self._library, *tables)

    def max_pool(
        self, x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        """[sample, channel, row, column]; a window holds at least one pixel."""
        samples, channels, height, width = x.shape
        for size, window, step, pad in zip((height, width), kernel, stride, padding, strict=True):
            fits = 0 < window <= size + 2 * pad and 0 <= 2 * pad <= window and step > 0
            require(fits, "a window larger than the image")
        rows, columns = (
            (size + 2 * pad - window) // step + 1
            for size, window, step, pad in zip((height, width), kernel, stride, padding, strict=True)
        )
        y = torch.empty((samples, channels, rows, columns), dtype=FLOAT, device=x.device)
        pool = words(samples * channels, height, width, rows, columns, *kernel, *stride, *padding)
        call(self._library.sparseopt_max_pool, pool, address(x, FLOAT), y.data_ptr())
        return y

    def tiles(self, lanes: int) -> list[TileSize]:
        """The tiles in which a frozen region of 4, 8 or 16 lanes can run."""
        return tiles(self._library, lanes)

    def gather(
        self, dense: Sequence[Tensor], position: Sequence[Tensor], before: Sequence[Tensor], values: Sequence[Tensor]
    ) -> list[bool]:  # fmt: skip
        """The active values of several tensors, and which of them are those before, where `before` is not empty."""
        copies = b"".join(_copy(*each) for each in zip(dense, position, before, values, strict=True))
        same = ctypes.create_string_buffer(len(dense))
        call(self._library.sparseopt_gather, len(dense), copies, same)
        return [each != 0 for each in same.raw]

    def nonzeros(self, x: Tensor) -> int:
        """How many entries are not zero, NaN among them."""
        found = Integer()
        call(self._library.sparseopt_nonzeros, address(x, FLOAT), x.numel(), found)
        return found.value

    def scatter(self, values: Sequence[Tensor], position: Sequence[Tensor], dense: Sequence[Tensor]) -> None:
        copies = b"".join(
            _copy(to, at, None, found) for to, at, found in zip(dense, position, values, strict=True)
        )
        call(self._library.sparseopt_scatter, len(dense), copies)


def _copy(dense: Tensor, position: Tensor, before: Tensor | None, values: Tensor) -> bytes:
    size = position.numel()
    known = 0 if before is None or not size or before.numel() != size else flat(before, size)
    return words(address(dense, FLOAT), address(position, SHORT), size, known, flat(values, size))
