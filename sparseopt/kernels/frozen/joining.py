"""Regions with a max pooling between them become one, which a batch passes through share by share.

What a max pooling reads is the largest image of a ResNet: as a tensor it would leave the cache, change its layout twice, and
take a sixth of the time. A pooling is taken along where it reads what a ReLU has made, and nobody else reads either.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.fx import Graph, Node

from sparseopt.kernels.frozen.description import Convs, ConvStep, PoolStep, Step
from sparseopt.kernels.match.effects import effects
from sparseopt.kernels.match.modules import must_be_called
from sparseopt.kernels.match.rewrite import Piece

Frozen = Piece[Convs]


@dataclass(frozen=True)
class _Pooling:
    node: Node
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]


def join_regions(model: nn.Module, graph: Graph, pieces: list[Frozen]) -> list[Frozen]:
    """The pieces, of those that a max pooling follows and the pieces behind it one each."""
    modules = dict(model.named_modules())
    place = {node: number for number, node in enumerate(graph.nodes)}
    barriers = effects(graph, modules)
    found = list(pieces)
    while pair := _find(found, modules, place, barriers):
        first, pooling, second = pair
        joined = Piece(
            _join(first.content, pooling, second.content, second.inputs.index(pooling.node)),
            first.nodes | second.nodes | {pooling.node},
            [*first.inputs, *(node for node in second.inputs if node is not pooling.node)],
            second.outputs,
        )
        found = [each for each in found if each is not first and each is not second] + [joined]
    return found


def _find(
    pieces: list[Frozen],
    modules: Mapping[str, nn.Module],
    place: Mapping[Node, int],
    barriers: frozenset[Node],
) -> tuple[Frozen, _Pooling, Frozen] | None:
    for first in pieces:
        pooling = _pooling_behind(first, modules)
        if pooling is None:
            continue
        for second in pieces:
            if pooling.node in second.inputs and set(pooling.node.users) <= second.nodes:
                nodes = first.nodes | second.nodes | {pooling.node}
                places = [place[node] for node in nodes]
                within = range(min(places), max(places))
                if not any(place[node] in within for node in barriers - nodes):
                    return first, pooling, second
    return None


def _pooling_behind(piece: Frozen, modules: Mapping[str, nn.Module]) -> _Pooling | None:
    """The max pooling that alone reads what alone the piece gives, if that is never negative."""
    if len(piece.outputs) != 1:
        return None
    (given,), (end,) = piece.outputs, piece.content.ends
    last = piece.content.steps[end.value - len(piece.content.inputs)]
    never_negative = isinstance(last, ConvStep) and last.relu and end.value >= len(piece.content.inputs)
    if end.pooled or not never_negative or len(given.users) != 1:
        return None
    (node,) = given.users
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    if type(module) is not nn.MaxPool2d or must_be_called(module) or len(node.args) != 1 or node.kwargs:
        return None
    kernel, stride, padding = (_pair(each) for each in (module.kernel_size, module.stride, module.padding))
    plain = _pair(module.dilation) == (1, 1) and not module.ceil_mode and not module.return_indices
    fits = all(0 <= 2 * each <= size for each, size in zip(padding, kernel, strict=True))
    if not plain or not fits or stride[0] != stride[1] or stride[0] not in (1, 2):
        return None
    return _Pooling(node, kernel, stride[0], padding)


def _join(first: Convs, pooling: _Pooling, second: Convs, at: int) -> Convs:
    """Values are numbered anew: inputs of both without the pooled one, steps of the first, the pooling, steps of the second."""
    inputs = (*first.inputs, *second.inputs[:at], *second.inputs[at + 1 :])
    pooled = len(inputs) + len(first.steps)

    def of_first(value: int) -> int:
        return value if value < len(first.inputs) else value - len(first.inputs) + len(inputs)

    def of_second(value: int) -> int:
        if value == at:
            return pooled
        if value < len(second.inputs):
            return len(first.inputs) + value - (value > at)
        return pooled + 1 + value - len(second.inputs)

    (end,) = first.ends
    source = of_first(end.value)
    channels = first.steps[end.value - len(first.inputs)].channels
    step = PoolStep(source, pooled, channels, pooling.kernel, pooling.stride, pooling.padding)
    steps = (
        *(_renumbered(each, of_first) for each in first.steps),
        step,
        *(_renumbered(each, of_second) for each in second.steps),
    )
    return Convs(inputs, steps, tuple(replace(each, value=of_second(each.value)) for each in second.ends))


def _renumbered(step: Step, number: Any) -> Step:
    step = replace(step, input=number(step.input), output=number(step.output))
    if isinstance(step, ConvStep) and step.shortcut is not None:
        return replace(step, shortcut=number(step.shortcut))
    return step


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
