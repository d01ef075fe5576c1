"""The gradient of all weights of a convolution, by the kernel, is what its definition says."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.memory import floats, zeros

EPS = torch.finfo(torch.float32).eps

# Channels in and out, kernel, stride, padding, height and width.
SHAPES = [
    (3, 16, (3, 3), 1, (1, 1), (8, 8)),
    (5, 7, (3, 3), 2, (1, 1), (9, 7)),
    (4, 4, (1, 1), 1, (0, 0), (5, 6)),
    (9, 10, (1, 1), 2, (0, 0), (8, 5)),
    (2, 3, (5, 3), 1, (2, 0), (7, 6)),
    (6, 5, (3, 5), 2, (1, 2), (6, 9)),
    (1, 1, (2, 2), 1, (1, 1), (4, 4)),
]


def blocked(image: Tensor, border: int = 0, *, half: bool = False) -> Tensor:
    """In the layout of the kernels; what lies in the border and in empty lanes must not count."""
    samples, channels, height, width = image.shape
    lanes = operators().lanes()
    x = zeros(-(-samples // lanes), height + 2 * border, channels, width + 2 * border, lanes)
    operators().pack(image.contiguous(), x, border)
    if not half:
        return x
    kept = torch.empty(x.shape, dtype=torch.bfloat16)
    return kept.copy_(x)


def found_and_true(
    shape: tuple[int, int, tuple[int, int], int, tuple[int, int], tuple[int, int]],
    samples: int,
    *,
    remade: bool,
    relu: bool = True,
    half: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    inputs, outputs, kernel, stride, padding, size = shape
    made = [
        (length + 2 * pad - window) // stride + 1
        for length, pad, window in zip(size, padding, kernel, strict=True)
    ]
    x, g, z = torch.randn(samples, inputs, *size), *torch.randn(2, samples, outputs, *made)
    if half:
        x, z = (each.bfloat16().float() for each in (x, z))
    coefficients, norm = torch.randn(4, outputs), torch.randn(3, inputs)
    border = 0 if remade or half else max(padding)
    gradient = floats(outputs, inputs, *kernel)
    operators().conv_dense_gradient(
        *(blocked(g), 0, blocked(z, half=half), coefficients, blocked(x, border, half=half), border),
        *(norm if remade else None, relu, stride, padding, samples, gradient),
    )
    a, b, c, mean = (each.double().view(-1, 1, 1) for each in coefficients)
    middle, scale, offset = (each.double().view(-1, 1, 1) for each in norm)
    read = x.double()
    if remade:
        read = (read - middle) * scale + offset
        read = read.relu() if relu else read
    dz = a * g + (b * (z - mean) + c)
    true, size_of_sums = (
        conv2d_weight(each, gradient.shape, of, stride, padding)  # pyright: ignore[reportArgumentType]
        for each, of in (
            (read, dz),
            (
                (x.abs() + middle.abs()) * scale.abs() + offset.abs() if remade else x.abs().double(),
                a.abs() * g.abs() + (b.abs() * (z.abs() + mean.abs()) + c.abs()),
            ),
        )
    )
    positions = made[0] * made[1]
    return gradient, true, size_of_sums * EPS * (positions + 10)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("remade", "relu"), [(False, False), (True, True), (True, False)])
def test_it_is_the_sum_over_all_samples_and_positions(
    shape: tuple[int, int, tuple[int, int], int, tuple[int, int], tuple[int, int]],
    *,
    remade: bool,
    relu: bool,
) -> None:
    torch.manual_seed(0)
    lanes = operators().lanes()
    for samples in (1, lanes, 2 * lanes + 3):
        found, true, bound = found_and_true(shape, samples, remade=remade, relu=relu)
        assert bool(((found - true).abs() <= bound).all())


@pytest.mark.parametrize("remade", [False, True])
def test_activations_in_half_precision(*, remade: bool) -> None:
    torch.manual_seed(0)
    for shape in SHAPES[:3]:
        found, true, bound = found_and_true(shape, 5, remade=remade, half=True)
        assert bool(((found - true).abs() <= bound).all())


def test_any_number_of_threads() -> None:
    threads, lanes = torch.get_num_threads(), operators().lanes()
    try:
        for number, shape in itertools.product((1, 2, 3), SHAPES[:4]):
            torch.set_num_threads(number)
            torch.manual_seed(0)
            found, true, bound = found_and_true(shape, 4 * lanes + 1, remade=True)
            assert bool(((found - true).abs() <= bound).all())
    finally:
        torch.set_num_threads(threads)


def test_what_does_not_fit_is_refused() -> None:
    g = z = blocked(torch.zeros(1, 2, 4, 4))
    x, coefficients = blocked(torch.zeros(1, 3, 4, 4)), zeros(4, 2)

    def gradient(*shape: int, padding: tuple[int, int] = (1, 1), samples: int = 1) -> None:
        operators().conv_dense_gradient(
            g, 0, z, coefficients, x, 0, None, False, 1, padding, samples, floats(*shape)
        )

    gradient(2, 3, 3, 3)
    wrong = (
        lambda: gradient(2, 4, 3, 3),
        lambda: gradient(3, 3, 3, 3),
        lambda: gradient(2, 3, 5, 3),
        lambda: gradient(2, 3, 3, 3, padding=(1, 0)),
        lambda: gradient(2, 3, 3, 3, padding=(1, -1)),
        lambda: gradient(2, 3, 3, 3, samples=operators().lanes() + 1),
    )
    for each in wrong:
        with pytest.raises(RuntimeError, match=r"expected a|fit one another"):
            each()
