"""A frozen region as the library keeps it: built once from tables, called with images alone."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparseopt.kernels.native.arguments import FLOAT, LONG, SHORT, address, addresses, require
from sparseopt.kernels.native.interface import Address, Output, Pattern, Tables
from sparseopt.kernels.native.memory import CPU

SLOT = 6  # numbers of a slot: offset, channels, height, width, border, rows
LAYER = 9  # numbers of a layer, see `csrc/network.h`


class Network:
    """`ends`: of every output its slot, whether it is a mean, and which pair of `linear` (weight, bias) follows, or -1."""

    def __init__(
        self, library: ctypes.CDLL, bands: int, floats: int, slots: Tensor, layers: Tensor, start: Tensor, offset: Tensor,
        values: Tensor, bias: Tensor, inputs: Tensor, ends: Tensor, linear: Sequence[Tensor],
    ) -> None:  # fmt: skip
        self._library, self._handle = library, Address()
        self._kept = (start, offset, values, bias, *linear)  # the library points into them
        table = slots.view(-1, SLOT).tolist()
        self._inputs = [tuple(table[slot][1:4]) for slot in inputs.tolist()]
        self._outputs: list[tuple[int, ...]] = []
        outputs: list[Output] = []
        for slot, mean, head in ends.view(-1, 3).tolist():
            channels, height, width = table[slot][1:4]
            if head >= 0:
                weight, added = linear[2 * head : 2 * head + 2]
                features = weight.shape[1]
                at = address(weight, FLOAT, channels, features), address(added, FLOAT, features)
                outputs.append(Output(slot, True, *at, features))
                self._outputs.append((features,))
            else:
                outputs.append(Output(slot, bool(mean), None, None, 0))
                self._outputs.append((channels,) if mean else (channels, height, width))
        weights = values.numel()
        tables = Tables(
            *(bands, floats, len(table), len(layers), len(inputs), len(outputs)),
            *(address(slots, LONG, len(table), SLOT), address(layers, LONG, len(layers), LAYER)),
            Pattern(address(start, SHORT), address(offset, SHORT, weights), address(values, FLOAT, weights), weights),
            *(address(bias, FLOAT), address(inputs, LONG), (Output * len(outputs))(*outputs)),
        )  # fmt: skip
        self._call("network_new", tables, ctypes.byref(self._handle))

    def run(self, images: Sequence[Tensor]) -> list[Tensor]:
        """[sample, channel, row, column] each -> the outputs."""
        samples = images[0].shape[0]
        given = [image.to(CPU, torch.float32).contiguous() for image in images]
        require(len(given) == len(self._inputs), "another number of inputs")
        results = [torch.empty((samples, *sizes), dtype=FLOAT, device=CPU) for sizes in self._outputs]
        self._call(
            "network_run",
            *(self._handle, samples),
            addresses([address(*each) for each in self._sized(given, samples)]),
            addresses([each.data_ptr() for each in results]),
        )
        return results

    def _sized(self, images: Sequence[Tensor], samples: int) -> list[tuple[Any, ...]]:
        return [(image, FLOAT, samples, *sizes) for image, sizes in zip(images, self._inputs, strict=True)]

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._library, f"sparseopt_{name}")(torch.get_num_threads(), *arguments)
        if error is not None:
            raise MemoryError(f"the sparse kernels failed: {error.decode()}")

    def __del__(self) -> None:
        if self._handle:
            self._library.sparseopt_network_free(self._handle)
