"""The OpenMP runtime that torch computes with: the kernels take their threads from it, so that a process has one pool of them.

Torch's wheels bring a runtime of their own under changing names, distributions link the system's, Intel's or LLVM's. All of them
export the same functions on Linux, and the dynamic linker finds them from torch's own library: among what it was loaded with.
"""

import ctypes
import functools

import torch

FUNCTIONS = ("GOMP_parallel", "GOMP_barrier", "omp_in_parallel", "omp_get_thread_num", "omp_get_num_threads")


class OpenMP(ctypes.Structure):
    """Addresses of `FUNCTIONS`, as `csrc/parallel.h` has them; all null without a runtime."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in FUNCTIONS)


@functools.cache
def runtime() -> OpenMP:
    try:
        torch_library = ctypes.CDLL(torch._C.__file__)
        return OpenMP(*(_address(torch_library, name) for name in FUNCTIONS))
    except (OSError, AttributeError):
        return OpenMP()


def _address(library: ctypes.CDLL, name: str) -> int | None:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
