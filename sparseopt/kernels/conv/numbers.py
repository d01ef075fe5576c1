"""Where the gradients of a region's parameters are written."""

import itertools
from collections.abc import Iterable, Mapping

from torch import Tensor

from sparseopt.kernels.match.graph import Conv
from sparseopt.kernels.native.memory import floats


class Numbers:
    """The gradients of all parameters as the kernels write them, in one row: weights, then those of the batch norm."""

    def __init__(self, sizes: Mapping[Conv, tuple[int, int]] | None = None) -> None:
        sizes = sizes or {}
        self.sizes = [part for weights, channels in sizes.values() for part in (weights, channels, channels)]
        self.row = floats(sum(self.sizes))
        ends = itertools.accumulate(weights + 2 * channels for weights, channels in sizes.values())
        self._ends = {conv: (end, *size) for end, (conv, size) in zip(ends, sizes.items(), strict=True)}

    def of(self, conv: Conv) -> tuple[Tensor, Tensor]:
        end, weights, channels = self._ends[conv]
        middle = end - 2 * channels
        return self.row[middle - weights : middle], self.row[middle:end].view(2, channels)

    def copies(self) -> Iterable[tuple[Tensor, ...]]:
        """Three tensors a convolution, of which nobody else has the memory."""
        parts = self.row.clone().split(self.sizes)
        return zip(parts[::3], parts[1::3], parts[2::3], strict=True)
