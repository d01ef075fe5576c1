"""The kernels of linear layers, on samples in tiles of vectors (`csrc/linear.h`)."""

from collections.abc import Sequence

from torch import Tensor

from sparseopt.kernels.native.arguments import DOUBLE, FLOAT, SHORT, address, require
from sparseopt.kernels.native.interface import words
from sparseopt.kernels.native.loaded import Loaded, flat, pattern_words
from sparseopt.kernels.native.tape import call


class LinearOperators(Loaded):
    """Forward and backward passes of chains of linear layers, with batch norm or without."""

    def tile_samples(self, x: Tensor, tiles: Tensor, repeat: bool = False) -> None:
        """`repeat`: samples that fill the last vector are the last one, as those of activations are, and not zero."""
        samples, features = x.shape
        vectors = self._layout.blocks(samples)
        to = self._layout.tiles(tiles, vectors, features)
        call(
            self._library.sparseopt_tile_samples,
            *(address(x, FLOAT), samples, repeat, features, vectors * self._layout.lanes, to),
        )

    def untile_samples(self, tiles: Tensor, x: Tensor) -> None:
        samples, features = x.shape
        vectors = self._layout.blocks(samples)
        found = self._layout.tiles(tiles, vectors, features)
        call(
            self._library.sparseopt_untile_samples,
            *(found, samples, features, vectors * self._layout.lanes, address(x, FLOAT)),
        )

    def chain_forward(
        self, values: Sequence[Tensor], start: Sequence[Tensor], offset: Sequence[Tensor], relu: Sequence[int],
        bias: Sequence[Tensor], tiles: Sequence[Tensor],
    ) -> None:  # fmt: skip
        """Layers that follow one another. `tiles`: the input and the outputs of all of them. An empty bias is none."""
        vectors = tiles[0].shape[0]
        features = [each.shape[2] for each in tiles]
        layers = b"".join(
            pattern_words(values[i], start[i], offset[i], features[i + 1])
            + words(0, _bias(bias[i], features[i + 1]), relu[i], features[i], features[i + 1], 0, 0)
            for i in range(len(values))
        )
        call(
            self._library.sparseopt_chain_forward,
            *(len(values), layers, vectors * self._layout.lanes, self._tiles(tiles, vectors, features)),
        )

    def _tiles(self, tiles: Sequence[Tensor], vectors: int, features: Sequence[int]) -> bytes:
        return words(
            *(self._layout.tiles(each, vectors, size) for each, size in zip(tiles, features, strict=True))
        )

    def chain_backward(
        self, gradient: Tensor, values: Sequence[Tensor], start: Sequence[Tensor], offset: Sequence[Tensor],
        order: Sequence[Tensor], relu: Sequence[int], tiles: Sequence[Tensor], input_gradient: Tensor | None,
        weight_gradient: Sequence[Tensor], bias_gradient: Sequence[Tensor],
    ) -> None:  # fmt: skip
        """`gradient`: of the last output; it is overwritten. `input_gradient`: where that of the input goes, if anywhere."""
        vectors = tiles[0].shape[0]
        features = [each.shape[2] for each in tiles]
        layers = b"".join(
            pattern_words(values[i], start[i], offset[i], features[i])
            + words(
                *(address(order[i], SHORT, values[i].numel()), 0, relu[i], features[i], features[i + 1]),
                *(flat(weight_gradient[i], values[i].numel()), _bias(bias_gradient[i], features[i + 1])),
            )
            for i in range(len(values))
        )
        dy = self._layout.tiles(gradient, vectors, features[-1])
        dx = None if input_gradient is None else self._layout.tiles(input_gradient, vectors, features[0])
        call(
            self._library.sparseopt_chain_backward,
            *(len(values), layers, vectors * self._layout.lanes, self._tiles(tiles, vectors, features)),
            *(dy, dx),
        )

    def sum_features(self, z: Tensor, samples: int, sums: Tensor) -> None:
        at, features, padded = self._features(z)
        require(padded == self._layout.blocks(samples) * self._layout.lanes, "the batch is another one")
        call(
            self._library.sparseopt_sum_features,
            *(at, features, samples, padded, address(sums, DOUBLE, 2, features)),
        )

    def normalise(self, z: Tensor, affine: Tensor, relu: bool, y: Tensor) -> None:
        at, features, padded = self._features(z)
        to = self._layout.tiles(y, z.shape[0], features)
        call(
            self._library.sparseopt_normalise,
            *(at, address(affine, FLOAT, 3, features), relu, features, padded, to),
        )

    def sum_gradients(
        self, y: Tensor | None, z: Tensor, mean: Tensor, gradient: Tensor, sums: Tensor
    ) -> None:
        """`mean`: the numbers of a batch norm, which begin with it."""
        at, features, padded = self._features(z)
        behind = None if y is None else self._layout.tiles(y, z.shape[0], features)
        call(
            self._library.sparseopt_sum_gradients,
            *(behind, at, address(mean, FLOAT, 3, features), features, padded),
            *(self._layout.tiles(gradient, z.shape[0], features), address(sums, DOUBLE, 2, features)),
        )

    def normalise_backward(self, z: Tensor, coefficients: Tensor, samples: int, gradient: Tensor) -> None:
        at, features, padded = self._features(z)
        require(padded == self._layout.blocks(samples) * self._layout.lanes, "the batch is another one")
        call(
            self._library.sparseopt_normalise_backward,
            *(at, address(coefficients, FLOAT, 4, features), features, samples, padded),
            self._layout.tiles(gradient, z.shape[0], features),
        )

    def _features(self, tiles: Tensor) -> tuple[int, int, int]:
        vectors, features = tiles.shape[0], tiles.shape[2]
        return self._layout.tiles(tiles, vectors, features), features, vectors * self._layout.lanes


def _bias(bias: Tensor, features: int) -> int:
    return address(bias, FLOAT, features) if bias.numel() else 0
