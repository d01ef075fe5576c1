"""The interface of the library: what it takes, what is refused before it, and whose threads it runs on."""

import ctypes
from collections.abc import Callable

import pytest
import torch

from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.memory import doubles, floats, zeros
from sparseopt.kernels.native.openmp import FUNCTIONS, runtime


def image(channels: int = 3, height: int = 4, width: int = 5, blocks: int = 1) -> torch.Tensor:
    return zeros(blocks, height, channels, width, operators().lanes())


REFUSED: dict[str, Callable[[], object]] = {
    "half precision": lambda: operators().gather(
        [zeros(4).half()], [torch.tensor([0]).int()], [floats(0)], [floats(1)]
    ),
    "strided": lambda: operators().gather([zeros(4, 4)[:, :2]], [torch.tensor([0]).int()], [floats(0)], [floats(1)]),
    "positions of another type": lambda: operators().gather([zeros(4)], [torch.tensor([0])], [floats(0)], [floats(1)]),
    "room for one value less": lambda: operators().scatter([floats(1)], [torch.tensor([0, 1]).int()], [zeros(4)]),
    "more samples": lambda: operators().pack(zeros(operators().lanes() + 1, 3, 4, 5), image(), 0),
    "another width": lambda: operators().pack(zeros(1, 3, 4, 6), image(), 0),
    "a border wider than the image": lambda: operators().pack(zeros(1, 3, 4, 5), image(), 3),
    "another number of lanes": lambda: operators().pack(zeros(1, 3, 4, 5), zeros(1, 4, 3, 5, 3), 0),
    "not aligned": lambda: operators().pack(
        zeros(1, 3, 4, 5), zeros(image().numel() + 1)[1:].view(image().shape), 0
    ),
    "fewer channels": lambda: operators().pool_forward(image(), 0, floats(1, 2)),
    "sums of another size": lambda: operators().finish_gradient(
        image(), 0, None, 0, image(), zeros(3, 3), 1, doubles(2, 2)
    ),
    "sums in single precision": lambda: operators().finish_gradient(
        image(), 0, None, 0, image(), zeros(3, 3), 1, floats(2, 3)
    ),
    "z of another height": lambda: operators().finish_gradient(
        image(), 0, None, 0, image(height=3), zeros(3, 3), 1, doubles(2, 3)
    ),
    "a gradient smaller than the shortcut's source": lambda: operators().shortcut_backward(
        image(), 0, 2, 0, image(height=9), 0, False
    ),
    "channels beyond the gradient's": lambda: operators().shortcut_backward(
        image(), 0, 1, 1, image(), 0, False
    ),
    "tiles of another batch": lambda: operators().tile_samples(
        zeros(2 * operators().lanes() + 1, 3), image(height=1, width=1)
    ),
    "lists of another layer": lambda: operators().chain_forward(
        [floats(1)], [torch.tensor([0, 1]).int()], [torch.tensor([0]).int()], [0], [floats(0)], [image(2, 1, 1), image(2, 1, 1)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_does_not_fit_is_refused_before_the_library_sees_it(wrong: str) -> None:
    with pytest.raises(RuntimeError, match=r"expected a|fit one another"):
        REFUSED[wrong]()


def test_threads_come_from_the_runtime_that_torch_uses() -> None:
    found = runtime()
    if not found.GOMP_parallel:
        pytest.skip("torch has no OpenMP")
    assert all(getattr(found, name) for name in FUNCTIONS)
    # Torch sets the number of threads in its runtime; another one would not know of it.
    most = ctypes.CDLL(torch._C.__file__).omp_get_max_threads
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert most() == threads
    finally:
        torch.set_num_threads(before)
