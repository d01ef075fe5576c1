"""A loaded library, and what its functions have in common."""

import ctypes

from torch import Tensor

from sparseopt.kernels.native.arguments import FLOAT, SHORT, Lanes, address, require
from sparseopt.kernels.native.interface import declare, words
from sparseopt.kernels.native.openmp import runtime


class Loaded:
    """The number of threads is torch's, at every call."""

    def __init__(self, library: ctypes.CDLL) -> None:
        declare(library)
        library.sparseopt_use(ctypes.byref(runtime()))
        self._library = library
        self._layout = Lanes(library.sparseopt_lanes())

    def lanes(self) -> int:
        return self._layout.lanes


def pattern_words(values: Tensor, start: Tensor, offset: Tensor, lists: int) -> bytes:
    size = values.numel()
    return words(*(address(start, SHORT, lists + 1), address(offset, SHORT, size), flat(values, size), size))


def flat(values: Tensor, size: int) -> int:
    """The address of as many floats, in whatever shape."""
    require(values.numel() == size, "another number of values")
    return address(values, FLOAT)
