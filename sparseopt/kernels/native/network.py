"""Frozen parts of a network as the library keeps them: built once from tables, called with data alone, by any thread.

The library trusts what it is given. What could make it read beyond a tensor is checked here: entries of a weight against its
shape, the shapes of layers against one another, and every input.
"""

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparseopt.kernels.native.arguments import FLOAT, SHORT, address, addresses, require
from sparseopt.kernels.native.interface import (
    Address,
    FrozenConv,
    FrozenLinear,
    FrozenOutput,
    Integer,
    Real,
    Segment,
    Slot,
    Tables,
    Weights,
)
from sparseopt.kernels.native.memory import CPU


@dataclass(frozen=True)
class TileSize:
    """Output vectors that are computed together; `direct`: the strides at which the input can be read where it is."""

    number: int
    rows: int
    columns: int
    direct: tuple[int, ...]

    @property
    def vectors(self) -> int:
        return self.rows * self.columns


def tiles(library: ctypes.CDLL, lanes: int) -> list[TileSize]:
    """The tiles the library has kernels for."""
    found, rows, columns, kernels = [], Integer(), Integer(), (Integer * 2)()
    while library.sparseopt_tile(lanes, len(found), rows, columns, kernels):
        direct = tuple(stride for stride, there in zip((1, 2), kernels, strict=True) if there)
        found.append(TileSize(len(found), rows.value, columns.value, direct))
    return [each for each in found if each.direct]


def weights(position: Tensor, values: Tensor, shape: Sequence[int]) -> Weights:
    """The entries of a weight [out, in] or [out, in, height, width] that are not zero; `position` must increase."""
    size = values.numel()
    sizes = (*shape, 1, 1)[:4]
    require(torch.Size(sizes).numel() < 2**31 and min(sizes) > 0, "a weight too large, or without entries")
    if size:
        steps = position[1:] > position[:-1]
        inside = int(position[0]) >= 0 and int(position[-1]) < torch.Size(sizes).numel()
        require(inside and bool(steps.all()), "entries of a weight in order, inside its shape")
    return Weights(address(position, SHORT, size), address(values, FLOAT, size), size, *sizes)


class _Handle:
    """Something the library has made, until nobody needs it."""

    kind = ""

    def __init__(self, library: ctypes.CDLL, kept: Sequence[Tensor]) -> None:
        self._library, self._handle = library, Address()
        self._kept = tuple(kept)  # the library points into them

    def _call(self, name: str, *arguments: Any) -> None:
        self._checked(getattr(self._library, f"sparseopt_{self.kind}_{name}"), *arguments)

    def _checked(self, function: Any, *arguments: Any, alone: bool = False) -> None:
        error = function(1 if alone else torch.get_num_threads(), *arguments)
        if error is not None:
            raise MemoryError(f"the sparse kernels failed: {error.decode()}")

    def __del__(self) -> None:
        if self._handle:
            getattr(self._library, f"sparseopt_{self.kind}_free")(self._handle)


class Network(_Handle):
    """A frozen region for images of one size. `ways` may change how a layer runs, and never its result."""

    kind = "network"

    def __init__(
        self, library: ctypes.CDLL, lanes: int, floats: int, segments: Sequence[Segment], slots: Sequence[Slot],
        layers: Sequence[FrozenConv], inputs: Sequence[int], outputs: Sequence[FrozenOutput], kept: Sequence[Tensor],
    ) -> None:  # fmt: skip
        super().__init__(library, kept)
        self._run = (
            library.sparseopt_network_run
        )  # found once: a small network takes a tenth of a millisecond
        images = [*inputs, *(each.slot for each in outputs if not each.mean)]
        require(all(slots[slot].group == 0 for slot in images), "images in groups of columns")
        self._inputs = [_image(slots[slot]) for slot in inputs]
        self._outputs: list[tuple[int, ...]] = []
        for each in outputs:
            channels, height, width = _image(slots[each.slot])
            if each.weights.out:
                require(each.weights.into == channels, "a linear layer of as many features as channels")
                self._outputs.append((each.weights.out,))
            else:
                self._outputs.append((channels,) if each.mean else (channels, height, width))
        _check_segments(segments, layers, slots, lanes)
        for layer in layers:
            _check_layer(layer, slots)
        tables = Tables(
            *(lanes, floats, len(segments), len(slots), len(layers), len(inputs), len(outputs)),
            (Segment * len(segments))(*segments),
            *((Slot * len(slots))(*slots), (FrozenConv * len(layers))(*layers)),
            *((Integer * len(inputs))(*inputs), (FrozenOutput * len(outputs))(*outputs)),
        )
        self._call("new", tables, ctypes.byref(self._handle))

    def choose(self, layer: int, tile: int, block: int, copies: int) -> None:
        self._call("choose", self._handle, layer, tile, block, copies)

    def time(self, layer: int, runs: int) -> float:
        seconds = Real()
        self._call("time", self._handle, layer, runs, ctypes.byref(seconds))
        return seconds.value

    def run(self, images: Sequence[Tensor], *, alone: bool = False) -> list[Tensor]:
        """[sample, channel, row, column] each -> the outputs. `alone`: by the calling thread."""
        require(len(images) == len(self._inputs), "another number of inputs")
        samples = len(images[0])
        given = [image.to(CPU, FLOAT).contiguous() for image in images]
        results = [torch.empty((samples, *sizes), dtype=FLOAT, device=CPU) for sizes in self._outputs]
        read = [
            address(image, FLOAT, samples, *sizes) for image, sizes in zip(given, self._inputs, strict=True)
        ]
        written = addresses([each.data_ptr() for each in results])
        self._checked(self._run, self._handle, samples, addresses(read), written, alone=alone)
        return results


def _image(slot: Slot) -> tuple[int, int, int]:
    return slot.channels, slot.height, slot.width


def _cut(slot: Slot) -> tuple[int, int]:
    return slot.bands, slot.strips


def _check_layer(layer: FrozenConv, slots: Sequence[Slot]) -> None:
    read, made, size = slots[layer.input], slots[layer.output], layer.weights
    rows, columns = (
        (extent + 2 * padding - kernel) // layer.stride + 1
        for extent, padding, kernel in (
            (read.height, layer.padding_rows, size.height),
            (read.width, layer.padding_columns, size.width),
        )
    )
    require(layer.stride in (1, 2), "stride 1 or 2")
    require((size.into, size.out) == (read.channels, made.channels), "channels that differ from the weight's")
    require((rows, columns) == (made.height, made.width), "an image that its convolution does not give")
    require(
        min(layer.padding_rows, layer.padding_columns) >= 0
        and max(layer.padding_rows, layer.padding_columns) <= read.border
        and layer.input != layer.output,
        "a padding wider than the border, or a layer that overwrites what it reads",
    )
    require(all(each.group == 0 or each.strips == 1 for each in (read, made)), "strips in groups of columns")
    inside = layer.padding_rows < size.height and layer.padding_columns < size.width
    require(read.group == 0 or inside, "a padding as wide as the kernel, of groups of columns")
    if layer.pool:
        require(size.into == size.out and not size.size, "a pooling of as many channels, without weights")
        require(read.group == 0, "a pooling of groups of columns")
    if layer.shortcut >= 0:
        added, step = slots[layer.shortcut], layer.shortcut_stride
        sizes = (-(-added.height // step), -(-added.width // step))
        require(step in (1, 2) and sizes == (made.height, made.width), "a sum of images of different sizes")
        require(
            layer.shortcut_offset >= 0 and layer.shortcut_offset + added.channels <= made.channels,
            "a sum of more channels than there are",
        )
        require(added.group == 0 or step == 1, "a shortcut that skips columns of groups")
        alone = layer.shortcut != layer.output or (step == 1 and added.channels == made.channels)
        require(_cut(added) == _cut(read) and alone, "a sum in place of values that differ in shape")


def _check_segments(
    segments: Sequence[Segment], layers: Sequence[FrozenConv], slots: Sequence[Slot], lanes: int
) -> None:
    require(bool(segments) and segments[-1].end == len(layers), "segments that hold all layers")
    require(all(lanes % each.bands == 0 for each in segments), "bands that divide the lanes")
    cuts = {before.end - 1: (before, each) for before, each in itertools.pairwise(segments)}
    require(all(before.end < each.end for before, each in cuts.values()), "segments one after another")
    for number, layer in enumerate(layers):
        read, made = slots[layer.input], slots[layer.output]
        if number not in cuts:
            require(_cut(read) == _cut(made), "a layer that reads other patches than it makes")
            continue
        before, following = cuts[number]
        ratio = before.bands // following.bands
        fewer = ratio in (2, 4, 8, 16) and before.bands == ratio * following.bands
        whole = made.rows % ratio == 0 and made.rows // ratio * layer.stride == read.rows
        cut = _cut(read) == (before.bands, 1) and _cut(made) == (following.bands, 1)
        require(fewer and cut and whole, "bands that become fewer, and are joined whole")
        require(layer.shortcut != layer.output, "a sum in place of one that is cut otherwise")


class NativeChain(_Handle):
    """A frozen chain of linear layers."""

    kind = "chain"

    def __init__(
        self, library: ctypes.CDLL, lanes: int, layers: Sequence[FrozenLinear], kept: Sequence[Tensor]
    ) -> None:
        super().__init__(library, kept)
        for layer, following in itertools.pairwise(layers):
            require(layer.weights.out == following.weights.into, "layers that do not fit one another")
        self._features = layers[0].weights.into, layers[-1].weights.out
        self._run = library.sparseopt_chain_run  # found once: small chains take microseconds
        self._call(
            "new", lanes, len(layers), (FrozenLinear * len(layers))(*layers), ctypes.byref(self._handle)
        )

    def choose(self, vectors: int, block: int) -> None:
        require(vectors in (0, 1, 2, 4, 8), "0, 1, 2, 4 or 8 vectors")
        self._call("choose", self._handle, vectors, block)

    def run(self, x: Tensor, *, alone: bool = False) -> Tensor:
        """[..., feature] -> [..., feature]; `alone`: by the calling thread."""
        (inputs, outputs), shape = self._features, x.shape
        require(shape[-1] == inputs, "another number of features")
        at = address(x, FLOAT)
        y = x.new_empty((*shape[:-1], outputs))
        self._checked(self._run, self._handle, x.numel() // inputs, at, y.data_ptr(), alone=alone)
        return y
