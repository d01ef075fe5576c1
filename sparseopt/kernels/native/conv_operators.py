"""The kernels of convolutions, on activations in the lane layout (`csrc/layout.h`)."""

from typing import NamedTuple

from torch import Tensor

from sparseopt.kernels.native.arguments import DOUBLE, FLOAT, SHORT, address, optional, require
from sparseopt.kernels.native.interface import NONE, Image, words
from sparseopt.kernels.native.loaded import Loaded, flat, pattern_words
from sparseopt.kernels.native.tape import call


class Window(NamedTuple):
    """Of a convolution."""

    rows: int
    columns: int
    padding_rows: int
    padding_columns: int


class ConvOperators(Loaded):
    """Forward and backward passes of convolutions with batch norm, and what happens between them."""

    def training_tiles(self, *, backward: bool) -> int:
        """In how many ways a convolution of a training step can run. All give the same bits."""
        return self._library.sparseopt_training_tiles(backward)

    def _tile(self, tile: int, *, backward: bool) -> int:
        require(0 <= tile < self.training_tiles(backward=backward), "a tile that there is not")
        return tile

    def conv_forward(
        self, x: Tensor, border: int, keep: bool, z: Tensor | None, norm: Tensor | None,
        shortcut: Tensor | None, shortcut_border: int, shortcut_norm: Tensor | None, shortcut_stride: int,
        shortcut_offset: int, relu: bool, values: Tensor, start: Tensor, offset: Tensor, stride: int, reach: int,
        samples: int, out: Tensor, shift: Tensor, sums: Tensor | None, copy: Tensor | None = None, dense: bool = False,
        tile: int = 0,
    ) -> None:  # fmt: skip
        """x: the input's rows, complete without z to make them from. Without `keep` it only gives their shape.

        What has been made is also written to `copy`, in half precision. Without a norm, z is such a copy. Of a `dense` layer all
        weights are active, and the tile is always the same.
        """
        into, made = self._layout.image(x, border), self._layout.image(out, 0, half=True)
        source = None
        if z is not None:
            source = self._source(
                *(z, norm, shortcut, shortcut_border, shortcut_norm),
                *(shortcut_stride, shortcut_offset, relu, copy),
            )
            require(z.shape[1:4] == into[2:5], "the rows to make are not those of z")
        require(keep or z is not None, "rows that are not kept are made from z")
        blocks = into.blocks if keep else len(z) if z is not None else 0
        require(blocks == made.blocks == self._layout.blocks(samples), "the batch is another one")
        _check_rows(into, made, stride, reach)
        pattern = pattern_words(values, start, offset, made.channels)
        whole = values.numel() % (made.channels * into.channels) == 0
        require(whole or not dense, "a dense layer without some of its weights")
        sums_at = optional(sums, DOUBLE, 2, made.channels)
        call(
            self._library.sparseopt_conv_forward,
            *(words(*into), keep, source, pattern, stride, reach, samples, words(*made)),
            *(address(shift, FLOAT, made.channels), sums_at, self._tile(tile, backward=False), dense),
        )

    def _source(
        self, z: Tensor, norm: Tensor | None, shortcut: Tensor | None, border: int, shortcut_norm: Tensor | None,
        stride: int, offset: int, relu: bool, copy: Tensor | None = None,
    ) -> bytes:  # fmt: skip
        made = self._layout.image(z, 0, half=True)
        plain = shortcut is None and copy is None and not relu
        require(norm is not None or (made.half != 0 and plain), "without a norm, a copy in half precision")
        kept = NONE if copy is None else self._layout.like(copy, 0, made, half=True)
        require(copy is None or kept.half != 0, "a copy in half precision")
        added = NONE
        if shortcut is not None:
            added = self._layout.image(shortcut, border, half=True)
            require(added.blocks == made.blocks, "a shortcut of another batch")
            _check_rows(added, made, stride, 1)
            require((made.width - 1) * stride < added.width, "a shortcut that is too narrow")
        return words(
            *(*made, optional(norm, FLOAT, 3, made.channels), *added),
            *(optional(shortcut_norm, FLOAT, 3, added.channels), stride, offset, relu, *kept),
        )

    def make_activation(
        self, z: Tensor, norm: Tensor, shortcut: Tensor | None, shortcut_border: int, shortcut_norm: Tensor | None,
        shortcut_stride: int, shortcut_offset: int, relu: bool, x: Tensor, border: int,
    ) -> None:  # fmt: skip
        source = self._source(
            *(z, norm, shortcut, shortcut_border, shortcut_norm),
            *(shortcut_stride, shortcut_offset, relu),
        )
        made = self._layout.like(x, border, self._layout.image(z, 0, half=True), half=True)
        require(not made.half or border == 0, "half precision has no border")
        call(self._library.sparseopt_make_activation, source, words(*made))

    def conv_backward(
        self, g: Tensor, g_border: int, z: Tensor, coefficients: Tensor, input: Tensor, input_border: int,
        input_norm: Tensor | None, input_relu: bool, to: Tensor | None, to_border: int, accumulate: bool,
        shortcut: Tensor | None, shortcut_border: int, shortcut_offset: int, mask: bool, input_z: Tensor | None,
        input_z_norm: Tensor | None, values: Tensor, start: Tensor, offset: Tensor, order: Tensor, stride: int,
        reach: int, dz_border: int, samples: int, weight_gradient: Tensor, sums: Tensor | None, dense: Window | None = None,
        tile: int = 0,
    ) -> None:  # fmt: skip
        """dense: of a layer whose weights are all active, for which there is one tile."""
        layout = self._layout
        gradients, read = self._gradients(
            *(g, g_border, z, coefficients, input, input_border, input_norm, input_relu, samples)
        )
        require(dz_border >= 0 and stride in (1, 2), "stride 1 or 2")
        channels, weights = read.channels, values.numel()
        added = NONE if shortcut is None else layout.image(shortcut, shortcut_border)
        if shortcut is not None:
            require(
                added.blocks == read.blocks
                and shortcut_offset >= 0
                and shortcut_offset + channels <= added.channels
                and (read.height - 1) // stride < added.height
                and (read.width - 1) // stride < added.width,
                "a shortcut's gradient that is too small",
            )
        behind = NONE if input_z is None else layout.like(input_z, 0, read, half=True)
        require(input_z is None or behind.half == read.half, "the input and its z in one precision")
        passed = gradients + words(
            *(*(NONE if to is None else layout.like(to, to_border, read)), accumulate),
            *(*added, shortcut_offset, mask),
            *behind,
            optional(input_z_norm, FLOAT, 3, channels),
        )
        require(input_z is None or input_z_norm is not None, "the sums over z need its mean")
        pattern = pattern_words(values, start, offset, stride * stride * channels)
        if dense is not None:
            require(
                weights == z.shape[2] * channels * dense.rows * dense.columns,
                "a dense layer without some of its weights",
            )
            _check_window(read, z, stride, dense)
        call(
            self._library.sparseopt_conv_backward,
            *(passed, pattern, address(order, SHORT, weights), stride, reach, dz_border, samples),
            *(flat(weight_gradient, weights), optional(sums, DOUBLE, 2, channels)),
            *(self._tile(tile, backward=True), None if dense is None else words(*dense)),
        )

    def conv_dense_gradient(
        self, g: Tensor, g_border: int, z: Tensor, coefficients: Tensor, input: Tensor, input_border: int,
        input_norm: Tensor | None, input_relu: bool, stride: int, padding: tuple[int, int], samples: int, gradient: Tensor,
    ) -> None:  # fmt: skip
        """The gradient of all weights, [output, input, row, column]."""
        gradients, read = self._gradients(
            *(g, g_border, z, coefficients, input, input_border, input_norm, input_relu, samples)
        )
        outputs, inputs, rows, columns = gradient.shape
        require(outputs == z.shape[2] and inputs == read.channels, "a gradient of other channels")
        window = Window(rows, columns, *padding)
        _check_window(read, z, stride, window)
        call(
            self._library.sparseopt_conv_dense_gradient,
            *(gradients, stride, words(*window), samples, address(gradient, FLOAT)),
        )

    def _gradients(
        self, g: Tensor, g_border: int, z: Tensor, coefficients: Tensor, input: Tensor, input_border: int,
        input_norm: Tensor | None, input_relu: bool, samples: int,
    ) -> tuple[bytes, Image]:  # fmt: skip
        """What a backward pass reads, and the image of its input."""
        layout = self._layout
        of_output, read = layout.image(g, g_border), layout.image(input, input_border, half=True)
        require(read.blocks == of_output.blocks == layout.blocks(samples), "the batch is another one")
        of_z, channels = layout.like(z, 0, of_output, half=True), of_output.channels
        found = words(
            *(*of_output, *of_z, address(coefficients, FLOAT, 4, channels)),
            *(*read, optional(input_norm, FLOAT, 3, read.channels), input_relu),
        )
        return found, read

    def batch_norm_forward(
        self, sums: Tensor, shift: Tensor, count: int, gamma: Tensor | None, beta: Tensor | None, eps: float,
        running_mean: Tensor | None, running_var: Tensor | None, factor: float, moments: Tensor, affine: Tensor,
    ) -> None:  # fmt: skip
        channels = shift.numel()
        require((running_mean is None) == (running_var is None), "a running mean without a variance")
        call(
            self._library.sparseopt_batch_norm_forward,
            *(channels, count, address(sums, DOUBLE, 2, channels), address(shift, FLOAT)),
            *(optional(gamma, FLOAT, channels), optional(beta, FLOAT, channels), eps),
            *(optional(running_mean, FLOAT, channels), optional(running_var, FLOAT, channels), factor),
            *(address(moments, DOUBLE, 2, channels), address(affine, FLOAT, 3, channels)),
        )

    def batch_norm_backward(
        self, sums: Tensor, count: int, moments: Tensor, gamma: Tensor | None, coefficients: Tensor, gradients: Tensor
    ) -> None:  # fmt: skip
        channels = coefficients.shape[1]
        call(
            self._library.sparseopt_batch_norm_backward,
            *(channels, count, address(sums, DOUBLE, 2, channels), address(moments, DOUBLE, 2, channels)),
            *(optional(gamma, FLOAT, channels), address(coefficients, FLOAT, 4, channels)),
            address(gradients, FLOAT, 2, channels),
        )

    def pack(self, image: Tensor, x: Tensor, border: int, repeat: bool = False) -> None:
        """`repeat`: lanes beyond the batch are its last sample, as those of activations are, and not zero."""
        to = self._layout.image(x, border)
        call(self._library.sparseopt_pack, *self._batch(image, to), repeat, words(*to))

    def unpack(self, x: Tensor, border: int, image: Tensor) -> None:
        found = self._layout.image(x, border, half=True)
        at, samples = self._batch(image, found)
        call(self._library.sparseopt_unpack, words(*found), samples, at)

    def _batch(self, image: Tensor, x: Image) -> tuple[int, int]:
        """Images as torch has them, as many as fit x."""
        samples = image.shape[0]
        require(self._layout.blocks(samples) == x.blocks, "a batch of another size")
        return address(image, FLOAT, samples, x.channels, x.height, x.width), samples

    def pool_forward(self, x: Tensor, border: int, pooled: Tensor) -> None:
        found = self._layout.image(x, border, half=True)
        at, samples = self._means(pooled, found)
        call(self._library.sparseopt_pool_forward, words(*found), samples, at)

    def pool_backward(self, gradient: Tensor, g: Tensor, border: int, accumulate: bool) -> None:
        to = self._layout.image(g, border)
        call(self._library.sparseopt_pool_backward, *self._means(gradient, to), words(*to), accumulate)

    def _means(self, pooled: Tensor, x: Image) -> tuple[int, int]:
        samples = pooled.shape[0]
        require(self._layout.blocks(samples) == x.blocks, "a batch of another size")
        return address(pooled, FLOAT, samples, x.channels), samples

    def shortcut_backward(
        self, g: Tensor, g_border: int, stride: int, offset: int, to: Tensor, to_border: int, accumulate: bool
    ) -> None:
        found, target = self._layout.image(g, g_border), self._layout.image(to, to_border)
        require(
            stride > 0
            and found.blocks == target.blocks
            and offset >= 0
            and offset + target.channels <= found.channels
            and (target.height - 1) // stride < found.height
            and (target.width - 1) // stride < found.width,
            "a gradient that is smaller than what its shortcut read",
        )
        call(
            self._library.sparseopt_shortcut_backward,
            words(*found),
            stride,
            offset,
            words(*target),
            accumulate,
        )

    def finish_gradient(
        self, g: Tensor, g_border: int, x: Tensor | None, x_border: int, z: Tensor, norm: Tensor, samples: int, sums: Tensor
    ) -> None:  # fmt: skip
        of = self._layout.image(g, g_border)
        require(of.blocks == self._layout.blocks(samples), "the batch is another one")
        read = self._layout.like(z, 0, of, half=True)
        behind = None if x is None else self._layout.like(x, x_border, of, half=True)
        require(behind is None or behind.half == read.half, "x and z in one precision")
        call(
            self._library.sparseopt_finish_gradient,
            *(words(*of), None if behind is None else words(*behind), words(*read)),
            address(norm, FLOAT, 3, of.channels),
            *(samples, address(sums, DOUBLE, 2, of.channels)),
        )


def _check_rows(read: Image, made: Image, stride: int, reach: int) -> None:
    """Output row h reads rows below h * stride + reach."""
    require(stride in (1, 2), "stride 1 or 2")
    require((made.height - 1) * stride + reach <= read.height + read.border, "rows beyond the image")


def _check_window(read: Image, z: Tensor, stride: int, window: Window) -> None:
    """The output reads nothing beyond the padding."""
    require(stride > 0 and min(window[2:]) >= 0, "a stride, and no padding below zero")
    sizes, made = (read.height, read.width), z.shape[1:4:2]
    for size, last, kernel, pad in zip(sizes, made, window[:2], window[2:], strict=True):
        require((last - 1) * stride + kernel <= size + 2 * pad, "a window beyond the image")
