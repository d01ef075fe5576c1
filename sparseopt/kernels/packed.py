"""The active weights of a layer for one pass: read from the dense parameter before it, their gradient written back after it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparseopt.kernels.build import operators
from sparseopt.kernels.memory import floats, zeros
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
    return all(each.dtype == torch.float32 and each.device.type == "cpu" for each in dense)


class GradientMemory:
    """The dense gradient of a layer, in the same memory from step to step: zeros that are there are not written again.

    The memory is used again when no tensor refers to it any more, and cleared first if somebody has written to it: that shows
    in the version counter, or (through `.data`, say) in the active values.
    """

    def __init__(self, position: Tensor) -> None:
        self.position = position
        self._dense: Tensor | None = None
        self._values = NOTHING
        self._version = 0

    def write(self, values: Tensor, weight: Tensor) -> Tensor:
        """`values` at the active positions, zero elsewhere."""
        ops, dense = operators(), self._dense
        if dense is None or ops.is_shared(dense):
            dense = scatter(values, self.position, weight)
        elif not self._rewrite(values, dense):
            ops.scatter([values], [self.position], [dense.zero_()])
        self._dense, self._values, self._version = dense.detach(), values, dense._version
        return dense

    def _rewrite(self, values: Tensor, dense: Tensor) -> bool:
        """Put new values in the place of the old ones, and see whether these were still there."""
        untouched = operators().scatter_over(self._values, values, self.position, dense)
        return untouched and dense._version == self._version

    def __deepcopy__(self, memo: dict[int, object]) -> "GradientMemory":
        return GradientMemory(self.position)
