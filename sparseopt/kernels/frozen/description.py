"""A frozen part of a network as data: what engines run, and what their files hold. No module of the model is left in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sparseopt.kernels.match.chains import LinearActivation
from sparseopt.kernels.native.memory import zeros


@dataclass(frozen=True, eq=False)
class SparseWeight:
    """The entries of a weight that are not zero: their places in the order of memory, and their values."""

    shape: tuple[int, ...]
    position: Tensor  # int32
    values: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> "SparseWeight":
        flat = weight.detach().reshape(-1)
        position = flat.nonzero().squeeze(1)
        return cls(tuple(weight.shape), position.int(), flat[position].contiguous())

    @cached_property
    def size(self) -> int:
        return torch.Size(self.shape).numel()

    def mask(self) -> Tensor:
        mask = torch.zeros(self.size, dtype=torch.bool, device="cpu")
        mask[self.position.long()] = True
        return mask.view(self.shape)

    def dense(self) -> Tensor:
        weight = zeros(self.size)
        weight[self.position.long()] = self.values
        return weight.view(self.shape)


def share_of_zeros(weights: Sequence[SparseWeight]) -> float:
    return 1 - sum(len(each.values) for each in weights) / sum(each.size for each in weights)


@dataclass(frozen=True, eq=False)
class ConvStep:
    """`output = relu(convolution(input) + bias + shortcut)`, values by their numbers. `name`: the layer's in the model,
    None for an average pooling. The shortcut is every `shortcut_stride`-th position of a value, its first channel added to
    channel `shortcut_offset`."""

    name: str | None
    input: int
    output: int
    weight: SparseWeight
    bias: Tensor
    stride: int
    padding: tuple[int, int]
    relu: bool
    shortcut: int | None = None
    shortcut_stride: int = 1
    shortcut_offset: int = 0

    @property
    def channels(self) -> int:
        return self.weight.shape[0]

    @property
    def kernel(self) -> tuple[int, int]:
        return self.weight.shape[2], self.weight.shape[3]


@dataclass(frozen=True, eq=False)
class PoolStep:
    """`output = max_pool(input)`, of an input that is never negative: a border of zeros then changes nothing."""

    input: int
    output: int
    channels: int
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]


Step = ConvStep | PoolStep


def size_after(step: Step, height: int, width: int) -> tuple[int, int]:
    """Height and width of what a step makes, from those of what it reads."""
    rows, columns = (
        (size + 2 * padding - kernel) // step.stride + 1
        for size, padding, kernel in zip((height, width), step.padding, step.kernel, strict=True)
    )
    return rows, columns


def reads(step: Step) -> list[int]:
    """The values that a step reads."""
    if isinstance(step, PoolStep) or step.shortcut is None:
        return [step.input]
    return [step.input, step.shortcut]


@dataclass(frozen=True, eq=False)
class Head:
    """A linear layer that reads a mean."""

    name: str
    weight: SparseWeight
    bias: Tensor


@dataclass(frozen=True, eq=False)
class End:
    """What leaves a region: a value as an image, its mean over all positions, or a linear layer of that mean."""

    value: int
    pooled: bool
    head: Head | None = None


@dataclass(frozen=True, eq=False)
class Convs:
    """A region. The inputs are values 0, 1, ...; every step makes one more, in order."""

    inputs: tuple[int, ...]  # their channels
    steps: tuple[Step, ...]
    ends: tuple[End, ...]

    def learned(self) -> list[ConvStep]:
        """The convolutions of the model; others are average poolings."""
        return [step for step in self.steps if isinstance(step, ConvStep) and step.name is not None]

    def weights(self) -> list[SparseWeight]:
        return [step.weight for step in self.learned()]

    def uses(self, first: int = 0) -> list[int]:
        """How often each value is read from step `first` on; an output is read once more, after the last step."""
        uses = [0] * (len(self.inputs) + len(self.steps))
        for value in (value for step in self.steps[first:] for value in reads(step)):
            uses[value] += 1
        for end in self.ends:
            uses[end.value] += 1
        return uses

    def names(self) -> list[str]:
        named = [str(step.name) for step in self.learned()]
        return [*named, *(end.head.name for end in self.ends if end.head is not None)]


@dataclass(frozen=True, eq=False)
class LinearStep:
    """`activation(weight @ x + bias)`"""

    name: str
    weight: SparseWeight
    bias: Tensor
    activation: LinearActivation


@dataclass(frozen=True, eq=False)
class Linears:
    """A chain of linear layers. `flat`: it had batch norm, which takes its second axis for the features: inputs have two."""

    steps: tuple[LinearStep, ...]
    flat: bool

    def weights(self) -> list[SparseWeight]:
        return [step.weight for step in self.steps]

    def names(self) -> list[str]:
        return [step.name for step in self.steps]
