"""The active weights of a layer for one pass: read from the dense parameter before it, their gradient written back after it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.memory import floats, zeros
from sparseopt.topology.active import ActiveEntries, TorchCopies


def gather(weight: Tensor, position: Tensor) -> Tensor:
    """The active values of a dense weight, in the order of memory."""
    values = floats(*position.shape)
    operators().gather([weight.detach().contiguous()], [position], [NOTHING], [values])
    return values


def scatter(values: Tensor, position: Tensor, weight: Tensor) -> Tensor:
    """A dense gradient: `values` at the active positions, zero elsewhere."""
    dense = zeros(*weight.shape)
    operators().scatter([values], [position], [dense])
    return dense


NOTHING = floats(0)


class CompiledCopies(TorchCopies):
    """The copies by the kernels, where the tensors are theirs: all values in one call, compared on the way."""

    def gather(
        self, dense: Sequence[Tensor], entries: Sequence[ActiveEntries], before: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], list[bool]]:
        if not _for_kernels(dense):
            return super().gather(dense, entries, before)
        position = [each.position for each in entries]
        values = [floats(*each.shape) for each in position]
        known = [NOTHING if each is None else each for each in before]
        return values, operators().gather(list(dense), position, known, values)

    def scatter(
        self, values: Sequence[Tensor], entries: Sequence[ActiveEntries], dense: Sequence[Tensor]
    ) -> None:
        if _for_kernels(dense):
            operators().scatter(list(values), [each.position for each in entries], list(dense))
            torch.autograd.graph.increment_version(dense)
        else:
            super().scatter(values, entries, dense)


def _for_kernels(dense: Sequence[Tensor]) -> bool:
    return bool(dense) and all(each.dtype == torch.float32 and each.device.type == "cpu" for each in dense)
