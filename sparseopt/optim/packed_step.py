"""A step of the base optimizer on the active weights alone, where that gives the same numbers and costs less.

While an elementwise optimizer steps, a stand-in takes the place of each sparse parameter: a matrix of one row with the active
weights, their gradients and their state. Afterwards the weights are back in the dense parameters, whose other entries nobody
has touched: they are as zero as before. The state stays packed, in tensors that are dense to whoever looks at them; so do the
weights where the kernels work on active values, too, and the same stand-ins serve again. So a step costs what the active weights
cost, and parameters and state are what they are after a dense step.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparseopt.optim.decay import Decayed
from sparseopt.topology import Topology
from sparseopt.topology.active import WEIGHT, ActiveEntries, Copies, Slot, flat, pick, read, write
from sparseopt.topology.active_parameter import ActiveParameter
from sparseopt.topology.active_tensor import ActiveTensor
from sparseopt.topology.sharding import is_sharded

BREAK_EVEN = 1 / 3  # share of active weights above which passes over the dense tensors are as fast

KEPT_ACTIVE = (ActiveTensor, ActiveParameter)

State = dict[str, Any]


def pays(topology: Topology, name: str) -> bool:
    """Is it worth packing the layer? On other devices than the CPU, looking after the zeros would stop the queue."""
    parameter = topology.parameters[name]
    plain = parameter.device.type == "cpu" and not is_sharded(parameter) and not parameter.is_inference()
    return plain and 0 < topology.active(name) <= BREAK_EVEN * topology.size(name)


class StandIn:
    """The active weights of a layer in the place of its parameter, for a step of the base optimizer.

    It may stand in again while weights and state are kept as the very values it has.
    """

    def __init__(self, layer: "PackedLayer", packed: dict[str, Tensor], state: State) -> None:
        self.layer, self.packed = layer, packed
        self.values = nn.Parameter(_row(packed[WEIGHT]))
        self.state = {key: _row(packed[key]) if key in packed else value for key, value in state.items()}
        self.rows = dict(self.state)

    def is_current(self, state: State) -> bool:
        return (
            self._is_kept(self.layer.parameter, WEIGHT)
            and state.keys() == self.state.keys()
            and all(self._is_kept(value, key) or value is self.state[key] for key, value in state.items())
        )

    def _is_kept(self, tensor: Any, role: str) -> bool:
        """Is a tensor kept as the active values that stand in for it?"""
        return (
            isinstance(tensor, KEPT_ACTIVE)
            and role in self.packed
            and tensor.content.holds(self.packed[role], self.layer.entries)
        )

    def hold_to_mask(self) -> None:
        """Nothing but active entries is here."""

    def correct(self) -> None:
        if self.values.grad is not None and (factors := self._factors()) is not None:
            self.values.grad.mul_(factors)

    @property
    def decayed(self) -> Decayed | None:
        factors = self._factors()
        return None if factors is None else Decayed(self.values, factors)

    def _factors(self) -> Tensor | None:
        return self.layer.factors if self.layer.measured is None else self.layer.measured(self.values)

    def destinations(self, state: State) -> Iterator[tuple[Slot, Tensor]]:
        """Where the active values go, and they. Completes the parameter's state by what the base has added or replaced."""
        parameter, entries = self.layer.parameter, self.layer.entries
        if self.values.data_ptr() != self.packed[WEIGHT].data_ptr():
            self.packed[WEIGHT] = flat(self.values.detach())
        yield Slot(entries, WEIGHT, parameter), self.packed[WEIGHT]
        for key, value in self.state.items():
            if value is self.rows.get(key) and (
                value is state.get(key) or self._is_kept(state.get(key), key)
            ):
                continue  # changed in place, where it is kept
            if not _has_shape(value, self.values.shape):
                state[key] = value
            elif _has_shape(state.get(key), parameter.shape):
                yield Slot(entries, key, state[key]), flat(value)
            else:
                self.packed[key] = flat(value)
                state[key] = ActiveTensor(self.packed[key], entries, parameter.shape)
        self.rows = dict(self.state)


class PackedLayer:
    """A sparse layer as the packed step needs it: where its active entries are, and their factors. Changes with the mask."""

    def __init__(
        self,
        parameter: nn.Parameter,
        entries: ActiveEntries,
        factors: Tensor | None,
        measured: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.parameter, self.entries, self.measured = parameter, entries, measured
        self.factors = None if factors is None else factors.expand_as(parameter).reshape(-1)[entries.index]
        self._last: StandIn | None = None

    def is_ready(self, state: State) -> bool:
        """Can the tensors be read and written by their active entries, as they are at this step?"""
        weight, grad = self.parameter, self.parameter.grad
        if isinstance(grad, ActiveTensor) and self.last(state) is not None:
            return True
        if grad is None or grad.layout != torch.strided or grad.dtype != weight.dtype:
            return False
        shaped = [value for value in state.values() if _has_shape(value, weight.shape)]
        return all(each.is_contiguous() and _is_inexact(each) for each in (weight, grad, *shaped))

    def last(self, state: State) -> "StandIn | None":
        """Who stood in at the last step, if nobody has touched the weights or the state since."""
        return self._last if self._last is not None and self._last.is_current(state) else None

    def stand_in(self, packed: dict[str, Tensor], state: State) -> "StandIn":
        self._last = StandIn(self, packed, state)
        return self._last


@contextmanager
def standing_in(base: Optimizer, layers: Sequence[PackedLayer], copies: Copies) -> Iterator[list[StandIn]]:
    """Let the optimizer hold stand-ins instead of these layers' parameters; write back what it did, unless it failed."""
    stand_ins = _read(layers, base.state, copies)
    by_parameter = {each.layer.parameter: each.values for each in stand_ins}
    held = [group["params"] for group in base.param_groups]
    for group in base.param_groups:
        group["params"] = [by_parameter.get(each, each) for each in group["params"]]
    base.state.update({each.values: each.state for each in stand_ins if each.state})
    try:
        yield stand_ins
    finally:
        for group, parameters in zip(base.param_groups, held, strict=True):
            group["params"] = parameters
        for each in stand_ins:
            each.state, each.values.grad = base.state.pop(each.values, {}), None
    _write(stand_ins, base.state, copies)


def _read(layers: Sequence[PackedLayer], states: dict[Tensor, State], copies: Copies) -> list[StandIn]:
    state = {layer: states.get(layer.parameter, {}) for layer in layers}
    stand_ins = {layer: each for layer in layers if (each := layer.last(state[layer])) is not None}
    slots = {layer: list(_slots(layer, state[layer])) for layer in layers if layer not in stand_ins}
    values = iter(_take([slot for each in slots.values() for slot in each], partial(read, copies)))
    for layer, of_layer in slots.items():
        packed = {slot.role: next(values) for slot in of_layer}
        stand_ins[layer] = layer.stand_in(packed, state[layer])
    grads = [
        Slot(at.entries, "gradient", at.parameter.grad) for at in layers if at.parameter.grad is not None
    ]
    for layer, grad in zip(layers, _take(grads, partial(pick, copies)), strict=True):
        stand_ins[layer].values.grad = _row(grad)
    return [stand_ins[layer] for layer in layers]


def _slots(layer: PackedLayer, state: State) -> Iterator[Slot]:
    """The weight, and all state with one entry a weight."""
    yield Slot(layer.entries, WEIGHT, layer.parameter)
    for role, value in state.items():
        if _has_shape(value, layer.parameter.shape):
            yield Slot(layer.entries, role, value)


def _write(stand_ins: Sequence[StandIn], states: dict[Tensor, State], copies: Copies) -> None:
    results = [
        result
        for each in stand_ins
        for result in each.destinations(states[each.layer.parameter] if each.state else {})
    ]
    _put([slot for slot, _ in results], [values for _, values in results], partial(write, copies))


def _take(slots: Sequence[Slot], from_dense: Callable[[list[Slot]], list[Tensor]]) -> list[Tensor]:
    """The active values of tensors in both forms; `from_dense` reads those that are dense."""
    values = iter(from_dense([slot for slot in slots if not isinstance(slot.dense, KEPT_ACTIVE)]))
    return [
        slot.dense.content.take(slot.entries) if isinstance(slot.dense, KEPT_ACTIVE) else next(values)
        for slot in slots
    ]


def _put(
    slots: Sequence[Slot], values: Sequence[Tensor], to_dense: Callable[[list[Slot], list[Tensor]], None]
) -> None:
    """The active values into tensors of both forms; `to_dense` writes those that are dense."""
    dense: list[tuple[Slot, Tensor]] = []
    for slot, each in zip(slots, values, strict=True):
        if isinstance(slot.dense, KEPT_ACTIVE):
            slot.dense.content.put(each, slot.entries)
        else:
            dense.append((slot, each))
    to_dense([slot for slot, _ in dense], [each for _, each in dense])


def pack_state(layers: Iterable[PackedLayer], states: dict[Tensor, State]) -> None:
    """Pack the state that was loaded, as if the steps that led to it had been taken here."""
    for layer in layers:
        state = states.get(layer.parameter, {})
        for _, role, value in list(_slots(layer, state))[1:]:
            if value.is_contiguous() and _is_inexact(value):
                values = value.view(-1)[layer.entries.index]
                state[role] = ActiveTensor(values, layer.entries, value.shape)


def _row(values: Tensor) -> Tensor:
    """Two axes: HAM leaves vectors alone."""
    return values.unsqueeze(0)


def _has_shape(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
