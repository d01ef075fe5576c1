"""The pieces of an engine's file that the kernels run, checked: the kernels trust every number they are given."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparseopt.kernels.frozen.chain import FrozenChain
from sparseopt.kernels.frozen.description import (
    Convs,
    ConvStep,
    End,
    Head,
    Linears,
    LinearStep,
    PoolStep,
    SparseWeight,
    Step,
)
from sparseopt.kernels.frozen.region import FrozenRegion
from sparseopt.kernels.match.chains import LinearActivation
from sparseopt.topology.bits import unpack

LARGEST = 2**31
WIDEST = 2**16  # of windows: torch goes through all of one, even where the image is smaller


def require(holds: bool, what: str) -> None:
    """Refuse a file of which this does not hold."""
    if not holds:
        raise ValueError(what)


def read_piece(operation: dict[str, Any], tensors: Mapping[str, Tensor]) -> FrozenRegion | FrozenChain:
    """The piece that an operation describes, from the tensors of its file."""
    reader = _PieceReader(tensors)
    if "region" in operation:
        return FrozenRegion(reader.convs(operation["region"]))
    return FrozenChain(reader.linears(operation["chain"]))


@dataclass
class _PieceReader:
    tensors: Mapping[str, Tensor]

    def floats(self, name: str, size: int) -> Tensor:
        tensor = self.tensors[name]
        fits = tensor.dtype == torch.float32 and tuple(tensor.shape) == (size,)
        require(fits, f"{name!r} is not {size} numbers of float32")
        return tensor.clone(
            memory_format=torch.contiguous_format
        )  # its own: operations of the file may write to the other

    def weight(self, saved: dict[str, Any], axes: int) -> SparseWeight:
        shape = tuple(_integer(each, 1, LARGEST) for each in saved["shape"])
        require(len(shape) == axes and math.prod(shape) < LARGEST, f"a weight of shape {shape}")
        require(all(each < WIDEST for each in shape[2:]), f"a window of {shape[2:]}")
        mask = self.tensors[saved["mask"]]
        size = -(-torch.Size(shape).numel() // 8)
        require(
            mask.dtype == torch.uint8 and tuple(mask.shape) == (size,), f"a mask that does not fit {shape}"
        )
        position = unpack(mask, shape).flatten().nonzero().squeeze(1).int()
        return SparseWeight(shape, position, self.floats(saved["values"], len(position)))

    def convs(self, saved: dict[str, Any]) -> Convs:
        inputs = tuple(_integer(each, 1, LARGEST) for each in saved["inputs"])
        channels, steps = list(inputs), list[Step]()
        for each in saved["steps"]:
            steps.append(self.pool(each, channels, steps) if "pool" in each else self.step(each, channels))
            channels.append(steps[-1].channels)
        ends = tuple(self.end(each, channels) for each in saved["ends"])
        require(bool(inputs and steps and ends), "a region without inputs, steps or outputs")
        return Convs(inputs, tuple(steps), ends)

    def pool(self, saved: dict[str, Any], channels: list[int], steps: list[Step]) -> PoolStep:
        source = _integer(saved["input"], len(channels) - len(steps), len(channels))
        made = steps[source - len(channels)]
        require(isinstance(made, ConvStep) and made.relu, "a max pooling of what may be negative")
        rows, columns = (_integer(each, 1, WIDEST) for each in saved["pool"])
        padding = tuple(
            _integer(each, 0, kernel // 2 + 1)
            for each, kernel in zip(saved["padding"], (rows, columns), strict=True)
        )
        stride = _integer(saved["stride"], 1, 3)
        return PoolStep(
            source, len(channels), channels[source], (rows, columns), stride, (padding[0], padding[1])
        )

    def step(self, saved: dict[str, Any], channels: list[int]) -> ConvStep:
        weight, shortcut = self.weight(saved["weight"], 4), saved["shortcut"]
        source = _integer(saved["input"], 0, len(channels))
        require(weight.shape[1] == channels[source], "a convolution of other channels than it reads")
        padding = tuple(
            _integer(each, 0, kernel) for each, kernel in zip(saved["padding"], weight.shape[2:], strict=True)
        )
        offset = _integer(saved["shortcut_offset"], 0, weight.shape[0])
        if shortcut is not None:
            added = channels[_integer(shortcut, 0, len(channels))]
            require(offset + added <= weight.shape[0], "a sum of more channels than there are")
        return ConvStep(
            *(
                _text(saved["name"]),
                source,
                len(channels),
                weight,
                self.floats(saved["bias"], weight.shape[0]),
            ),
            *(_integer(saved["stride"], 1, 3), (padding[0], padding[1]), _flag(saved["relu"]), shortcut),
            *(_integer(saved["shortcut_stride"], 1, 3), offset),
        )

    def end(self, saved: dict[str, Any], channels: list[int]) -> End:
        value, head = _integer(saved["value"], 0, len(channels)), saved["head"]
        if head is None:
            return End(value, _flag(saved["pooled"]))
        weight = self.weight(head["weight"], 2)
        require(weight.shape[1] == channels[value], "a linear layer of other features than it reads")
        bias = self.floats(head["bias"], weight.shape[0])
        return End(value, True, Head(_text(head["name"]) or "", weight, bias))

    def linears(self, saved: dict[str, Any]) -> Linears:
        steps = []
        for each in saved["steps"]:
            weight = self.weight(each["weight"], 2)
            fits = not steps or weight.shape[1] == steps[-1].weight.shape[0]
            require(fits, "linear layers that do not fit one another")
            bias = self.floats(each["bias"], weight.shape[0])
            steps.append(LinearStep(_text(each["name"]) or "", weight, bias, _activation(each["activation"])))
        require(bool(steps), "a chain without layers")
        return Linears(tuple(steps), _flag(saved["flat"]))


def _integer(value: Any, least: int, below: int) -> int:
    fits = type(value) is int and least <= value < below
    require(fits, f"{value!r} is not a number from {least} to {below - 1}")
    return value


def _activation(value: Any) -> LinearActivation:
    require(
        value in LinearActivation.__members__,
        f"{value!r} is none of {', '.join(LinearActivation.__members__)}",
    )
    return LinearActivation[value]


def _flag(value: Any) -> bool:
    require(type(value) is bool, f"{value!r} is neither true nor false")
    return value


def _text(value: Any) -> str | None:
    require(value is None or isinstance(value, str), f"{value!r} is not a name")
    return value
