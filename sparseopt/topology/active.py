"""The active entries of a layer's dense tensors: its weight and its optimizer state, which are to be zero outside the mask.

Who needs the active values alone can read them, work on them and write them back. What that leaves open is whether all other
entries are zero, which takes a pass over the whole tensor to see. So it is remembered how a tensor was left, zero outside
the mask: while nobody has touched it since, it is so still.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

WEIGHT = ""  # the role of the weight itself: no name of a state

INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes


@torch.no_grad()
def hold_to_mask_(tensor: Tensor, mask: Tensor) -> None:
    """Set a tensor to exactly zero, in place, where the mask (bytes, 0 or 1) is 0.

    It multiplies the bits of the numbers, seen as integers: as fast as multiplying the numbers, several times faster than
    selecting by a bool mask, and exact also where the tensor holds inf or NaN, whose product with 0 is NaN.
    """
    if tensor.is_complex():
        tensor, mask = torch.view_as_real(tensor), mask.unsqueeze(-1)
    tensor.view(INTEGER[tensor.itemsize]).mul_(mask)


class Left(NamedTuple):
    """How a tensor was left: zero outside the mask, `values` inside. `alias` shares its memory and its version counter."""

    alias: Tensor
    version: int
    values: Tensor

    def is_written_to(self, tensor: Tensor) -> bool:
        """Is it another tensor now, or has one of torch's operators changed it?

        Writes that go round the version counter, such as those through `.data`, show in the active values: an edit of the
        whole tensor changes some of them, too.
        """
        return tensor.data_ptr() != self.alias.data_ptr() or tensor._version != self.version


class ActiveEntries:
    """Where the active entries of one layer are under one mask, in the order of memory, and how its tensors were left.

    Tensors are contiguous and have the layer's shape. A `role` names one of them: the weight, or a state of the optimizer.
    """

    def __init__(self, mask: Tensor) -> None:
        self.index = mask.flatten().nonzero().squeeze(1)
        self.mask = mask.view(torch.uint8)
        self.left: dict[str, Left] = {}

    @cached_property
    def position(self) -> Tensor:
        """The index in half the memory, as the kernels read it."""
        return self.index.int()


class Slot(NamedTuple):
    """One dense tensor of a layer."""

    entries: ActiveEntries
    role: str
    dense: Tensor


class Copies(Protocol):
    """Copies between dense tensors and vectors of their active values."""

    def gather(
        self, dense: Sequence[Tensor], entries: Sequence[ActiveEntries], before: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], list[bool]]:
        """The active values, and whether they are, bit by bit, those before."""
        ...

    def scatter(
        self, values: Sequence[Tensor], entries: Sequence[ActiveEntries], dense: Sequence[Tensor]
    ) -> None: ...


class TorchCopies:
    """The copies, by torch's own operators."""

    def gather(
        self, dense: Sequence[Tensor], entries: Sequence[ActiveEntries], before: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], list[bool]]:
        values = [each.view(-1).index_select(0, at.index) for each, at in zip(dense, entries, strict=True)]
        same = [old is not None and _same_bits(old, new) for old, new in zip(before, values, strict=True)]
        return values, same

    def scatter(
        self, values: Sequence[Tensor], entries: Sequence[ActiveEntries], dense: Sequence[Tensor]
    ) -> None:
        for new, at, each in zip(values, entries, dense, strict=True):
            each.view(-1).scatter_(0, at.index, new)


@torch.no_grad()
def pick(copies: Copies, slots: Sequence[Slot]) -> list[Tensor]:
    """The active values of the tensors, whatever their other entries are."""
    entries = [slot.entries for slot in slots]
    return copies.gather([slot.dense.detach() for slot in slots], entries, [None for _ in slots])[0]


@torch.no_grad()
def read(copies: Copies, slots: Sequence[Slot]) -> list[Tensor]:
    """The active values of the tensors, whose other entries are exactly zero afterwards."""
    left = [slot.entries.left.get(slot.role) for slot in slots]
    values, same = copies.gather(
        [slot.dense.detach() for slot in slots],
        [slot.entries for slot in slots],
        [None if each is None else each.values for each in left],
    )
    for slot, known, unchanged in zip(slots, left, same, strict=True):
        if known is None or not unchanged or known.is_written_to(slot.dense):
            hold_to_mask_(slot.dense.detach(), slot.entries.mask)
    return values


@torch.no_grad()
def write(copies: Copies, slots: Sequence[Slot], values: Sequence[Tensor]) -> None:
    """Put the active values into tensors that are zero elsewhere. The values are remembered: nobody may change them."""
    dense = [slot.dense.detach() for slot in slots]
    copies.scatter(values, [slot.entries for slot in slots], dense)
    for slot, alias, each in zip(slots, dense, values, strict=True):
        slot.entries.left[slot.role] = Left(alias, alias._version, each)


def flat(values: Tensor) -> Tensor:
    """One axis; the very tensor if it has."""
    return values if values.dim() == 1 else values.view(-1)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal as integers: NaN and -0 are no exceptions."""
    if a.dtype != b.dtype:
        return False
    return torch.equal(a.view(INTEGER[a.itemsize]), b.view(INTEGER[b.itemsize]))
