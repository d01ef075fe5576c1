"""A training step of a region that repeats the step before: the same calls of the library, on the same memory.

`key` says what the calls follow from: sizes, modes, where parameters and statistics lie. A step that needs no new memory writes
its calls down (see `native/tape.py`), and those that follow with the same key make them again. The images, the gradients
that come in and all that leaves are other tensors at every step: they pass between them and the memory that stays, outside of
these calls.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparseopt.kernels.conv.run import Entered, RegionRun
from sparseopt.kernels.match.graph import Conv
from sparseopt.kernels.native.measurements import measurements
from sparseopt.kernels.native.packed import KernelWeight
from sparseopt.kernels.native.tape import Calls, play, recorded

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Tape:
    """One step: its calls, and what the run was like between them."""

    forward: Calls
    between: Any
    entered: list[Entered]  # where the gradients of the outputs go
    kind: Key  # which gradients come in, and which are wanted
    backward: Calls
    free: Any  # the memory that is free afterwards: all of it


class TapedRun:
    """A run that can be made again: forward, backward, forward, and so on. Without a key nothing is written down."""

    def __init__(self, run: RegionRun, key: Key | None) -> None:
        self.run, self.key = run, key
        self._tape: Tape | None = None
        self._calls: Calls | None = None  # of a forward pass that was no repetition
        self._between: Any = None
        self._changes = 0

    def forward(self, images: Sequence[Tensor]) -> list[Tensor]:
        run, tape = self.run, self._tape
        if tape is not None:
            run.set_state(tape.between)
            run.enter(images)
            if counted := counters(run.plan.region.convs):
                torch._foreach_add_(counted, 1)  # pyright: ignore[reportPrivateImportUsage]
            play(tape.forward)
            return run.leave()
        run.begin()
        self._changes = run.buffers.changes
        run.enter(images)
        with recorded() as calls:
            run.compute()
        measurements().keep()
        self._calls = calls if self.key is not None else None
        self._between = run.state()
        return run.leave()

    def backward(
        self, gradients: Sequence[Tensor | None], input_wanted: Sequence[bool]
    ) -> tuple[list[Tensor | None], dict[Tensor, Tensor]]:
        """The gradients of the inputs that are wanted, and those of the parameters."""
        run, tape = self.run, self._tape
        kind = (*(each is None for each in gradients), *input_wanted)
        dense = any(weight.dense_wanted for weight in run.weights.values())  # in memory that is theirs
        if tape is not None and kind == tape.kind and not dense:
            run.enter_back(gradients, tape.entered)
            play(tape.backward)
            found = run.leave_back()
            run.clear(tape.free)
            return found
        self._tape = None
        entered = run.enter_back(gradients)
        with recorded() as calls:
            run.compute_back(input_wanted)
        measurements().keep()
        found = run.leave_back()
        run.release()
        # Memory that had to be made, or was another shape's, is another one next time, or has no border.
        same_memory = run.buffers.changes == self._changes
        if self._calls is not None and run.again and same_memory and not dense:
            self._tape = Tape(self._calls, self._between, entered, kind, calls, run.buffers.state())
        self._calls = self._between = None
        return found


def key_of(
    images: Sequence[Tensor], convs: Iterable[Conv], weights: Mapping[Conv, KernelWeight], lists: Any
) -> Key | None:
    """What the calls of a training step follow from; None where a step computes something outside of the library.

    `lists`: what the index lists follow from.
    """
    parts: list[Any] = [lists, *(image.shape for image in images)]
    for conv in convs:
        weight, norm = weights[conv].parameter, conv.norm
        if conv.module.bias is not None or not weight.is_contiguous():
            return None
        parts += (weight.data_ptr(), weight.shape)
        if norm is not None:
            if norm.running_mean is not None and (not norm.training or norm.momentum is None):
                return None
            tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
            parts += (0 if each is None else each.data_ptr() for each in tensors)
            parts += (norm.training, norm.track_running_stats, norm.momentum, norm.eps)
    return tuple(parts)


def counters(convs: Iterable[Conv]) -> list[Tensor]:
    """How many batches each batch norm has seen, of those that count."""
    norms = (conv.norm for conv in convs)
    return [
        norm.num_batches_tracked
        for norm in norms
        if norm is not None
        and norm.training
        and norm.track_running_stats
        and norm.num_batches_tracked is not None
    ]
