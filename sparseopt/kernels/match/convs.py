"""Finds the convolutions of a traced network that the kernels can run, and everything around them that comes along.

The trace is walked once, in order. Every node is given a level: a node that the kernels run keeps the level of what it reads, a
node that runs densely is one above any kernel value it reads. Kernel nodes of one level form one region; between two levels
there is only dense computation, so regions never wait for each other in a circle.
"""

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node
from torch.nn import functional as F

from sparseopt.kernels.match.averaging import averaging, pooling_options
from sparseopt.kernels.match.effects import unused
from sparseopt.kernels.match.graph import Activation, Conv, Output, Region, Shortcut
from sparseopt.kernels.match.modules import must_be_called, norm_activation, zero_padding
from sparseopt.kernels.match.mutation import added
from sparseopt.kernels.match.rewrite import Piece

RELU = {F.relu, torch.relu, "relu"}
ADD = {operator.add, added, torch.add, "add"}
MEAN = {torch.mean, "mean"}
POOL = {F.adaptive_avg_pool2d}
PLANES = ({2, 3}, {-2, -1})

Value = Conv | Activation | Shortcut
Names = Callable[
    [nn.Module, str], str
]  # the name of a layer's weight, from the layer and the name it is called by


@dataclass
class Found:
    """A node's value in the kernels' layout and the level of its region."""

    value: Value
    level: int


def match_convs(
    modules: Mapping[str, nn.Module],
    graph: Graph,
    tied: set[nn.Module],
    effects: frozenset[Node],
    names: Names,
) -> list[Piece[Region]]:
    """The regions of a trace. What turns out to have no way to leave its region is left out, and the rest matched anew."""
    left_out = unused(graph, effects)
    while True:
        matcher = Matcher(modules, graph, tied, effects, names, left_out)
        stranded = matcher.stranded()
        if not stranded:
            return matcher.pieces()
        left_out |= stranded


class Matcher:
    """Walks a trace and collects regions, the dense nodes they read and the nodes whose values leave them."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        graph: Graph,
        tied: set[nn.Module],
        effects: frozenset[Node],
        names: Names,
        left_out: frozenset[Node],
    ) -> None:
        self.modules, self.tied, self.effects, self.names, self.left_out = (
            modules,
            tied,
            effects,
            names,
            left_out,
        )
        self.segment: dict[Node, int] = {}  # number of effects before a node
        self.lowest = 0  # the level of the first region that may still grow
        self.calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
        self.found: dict[Node, Found] = {}
        self.levels: dict[Node, int] = {}
        self.regions: dict[int, Region] = {}
        self.inputs: dict[int, dict[Node, Activation]] = {}
        self.outputs: dict[int, dict[Node, Output]] = {}
        self._segments = 0
        self._bare: dict[Conv, Activation] = {}
        for node in graph.nodes:
            self._visit(node)

    def pieces(self) -> list[Piece[Region]]:
        """The regions found, with the nodes they read and those they stand for."""
        self._collect_outputs()
        return [
            Piece(
                region,
                frozenset(node for node in self.found if self._in_layout(node, level)),
                list(self.inputs[level]),
                {node: self._plane_channels(node, output) for node, output in self.outputs[level].items()},
            )
            for level, region in self.regions.items()
            if level in self.outputs
        ]

    @staticmethod
    def _plane_channels(node: Node, output: Output) -> int | None:
        """Number of channels of a mean that keeps its two axes of size one."""
        if not output.pooled:
            return None
        function = node.op != "call_module" and node.target in MEAN
        kept = not function or node.kwargs.get("keepdim", node.args[2] if len(node.args) > 2 else False)
        return output.activation.channels if kept else None

    def _visit(self, node: Node) -> None:
        level = max((self.levels[each] for each in node.all_input_nodes), default=self.lowest)
        level = max(level, self.lowest)
        value = None if node in self.effects or node in self.left_out else self._match(node, level)
        if value is not None:
            self.found[node] = Found(value, level)
        elif any(self._in_layout(each, level) for each in node.all_input_nodes):
            level += 1
        self.levels[node] = level
        self.segment[node] = self._segments
        if node in self.effects:
            self._segments += 1
            self.lowest = 1 + max((found.level for found in self.found.values()), default=-1)

    def stranded(self) -> frozenset[Node]:
        """Parts of a shortcut that nobody adds on the kernels: they are views of activations, which cannot leave."""
        return frozenset(
            node
            for node, found in self.found.items()
            if isinstance(found.value, Shortcut)
            and any(not self._in_layout(user, found.level) for user in node.users)
        )

    def _in_layout(self, node: Node, level: int) -> bool:
        return node in self.found and self.found[node].level == level

    def _collect_outputs(self) -> None:
        """Kernel values that a dense node or another region reads."""
        for node, found in self.found.items():
            readers = [user for user in node.users if not self._in_layout(user, found.level)]
            pooled = [
                user for user in readers if self._is_pool(user) and self.segment[user] == self.segment[node]
            ]
            if len(readers) > len(pooled):
                self._leave(node, node, pooled=False)
            for user in pooled:
                self._leave(node, user, pooled=True)

    def _leave(self, node: Node, user: Node, *, pooled: bool) -> None:
        found = self.found[node]
        output = Output(self._activation(node), pooled)
        self.regions[found.level].outputs.append(output)
        self.outputs.setdefault(found.level, {})[user] = output

    def _value(self, node: Any, level: int) -> Value | None:
        return self.found[node].value if isinstance(node, Node) and self._in_layout(node, level) else None

    def _activation(self, node: Node) -> Activation:
        """The node's value as something that can be read; a bare convolution becomes an activation without ReLU."""
        found = self.found[node]
        if isinstance(found.value, Conv):
            found.value = self._bare.setdefault(found.value, Activation(found.value, found.value.channels))
        assert isinstance(found.value, Activation)
        return found.value

    def _enter(self, node: Node, level: int, channels: int) -> Activation:
        """A dense value as an input of the region of this level."""
        inputs = self.inputs.setdefault(level, {})
        if node not in inputs:
            inputs[node] = Activation(None, channels)
            self.regions.setdefault(level, Region()).inputs.append(inputs[node])
        return inputs[node]

    def _read(self, node: Node, level: int, channels: int) -> Activation | None:
        """What a convolution reads from a node; None if it is a view that the kernels cannot read."""
        value = self._value(node, level)
        if value is None:
            return self._enter(node, level, channels)
        return None if isinstance(value, Shortcut) else self._activation(node)

    def _match(self, node: Node, level: int) -> Value | None:
        if node.op == "call_module":
            return self._match_module(node, level)
        if node.op not in ("call_function", "call_method"):
            return None
        if node.target in RELU:
            return self._relu(node, level)
        if node.target in ADD:
            return self._add(node, level)
        if node.target is operator.getitem:
            return self._subsample(node, level)
        if node.target is F.pad:
            return self._pad_channels(node, level)
        if node.target is F.avg_pool2d:
            return self._average(node, level)
        return None

    def _match_module(self, node: Node, level: int) -> Value | None:
        module = self.modules[str(node.target)]
        if module in self.tied or must_be_called(module) or len(node.args) != 1 or node.kwargs:
            return None
        called_once = self.calls[node.target] == 1
        if isinstance(module, nn.Conv2d) and called_once:
            return self._conv(node, module, level)
        if isinstance(module, nn.BatchNorm2d) and called_once:
            return self._norm(node, module, level)
        if isinstance(module, nn.ReLU):
            return self._relu(node, level)
        if isinstance(module, nn.Identity):
            return self._identity(node, level)
        if isinstance(module, nn.AvgPool2d):
            return self._average(node, level)
        return None

    def _identity(self, node: Node, level: int) -> Value | None:
        value = self._value(node.args[0], level)
        finished = isinstance(value, Activation) and value.relu
        return value if finished else self._only_reader(node.args[0], level)

    def _conv(self, node: Node, module: nn.Conv2d, level: int) -> Conv | None:
        name = self.names(module, str(node.target))
        source = node.args[0]
        if not (supported(module) and isinstance(source, Node)):
            return None
        activation = self._read(source, level, module.in_channels)
        if activation is None:
            return None
        conv = Conv(activation, module, name)
        self.regions.setdefault(level, Region()).convs.append(conv)
        return conv

    def _average(self, node: Node, level: int) -> Conv | None:
        """Average pooling of a value of the region, as a convolution whose weights are constant."""
        if not node.args:
            return None
        source, options = node.args[0], pooling_options(node, self.modules.get(str(node.target)))
        value = self._value(source, level)
        if options is None or not isinstance(source, Node) or not isinstance(value, Conv | Activation):
            return None
        module = averaging(value.channels, *options)
        if not supported(module):
            return None
        conv = Conv(self._activation(source), module, None)
        self.regions[level].convs.append(conv)
        return conv

    def _norm(self, node: Node, module: nn.BatchNorm2d, level: int) -> Conv | Activation | None:
        value = self._only_reader(node.args[0], level)
        if not isinstance(value, Conv) or value.norm is not None:
            return None
        value.norm = module
        relu = isinstance(norm_activation(module), nn.ReLU)
        return Activation(value, value.channels, relu=True) if relu else value

    def _only_reader(self, node: Any, level: int) -> Value | None:
        """The node's value, if nothing else reads it."""
        return self._value(node, level) if isinstance(node, Node) and len(node.users) == 1 else None

    def _relu(self, node: Node, level: int) -> Activation | None:
        value = self._only_reader(node.args[0], level) if node.args else None
        if isinstance(value, Conv):
            return Activation(value, value.channels, relu=True)
        if isinstance(value, Activation) and value.main is not None:
            value.relu = True
            return value
        return None

    def _add(self, node: Node, level: int) -> Activation | None:
        if len(node.args) != 2 or node.kwargs or node.args[0] is node.args[1]:
            return None
        for first, second in (node.args, node.args[::-1]):
            main, added = self._only_reader(first, level), self._added(second, level)
            if not isinstance(main, Conv) or not isinstance(second, Node) or added is None:
                continue
            if isinstance(added, Conv) and len(second.users) > 1:
                added = self._activation(second)
            shortcut = added if isinstance(added, Shortcut) else Shortcut(added, added.channels)
            if shortcut.channels == main.channels:
                return Activation(main, main.channels, shortcut)
        return None

    def _added(self, node: Any, level: int) -> Value | None:
        """What a sum adds: a value of the region, or an input that a convolution of the region reads as well."""
        while isinstance(node, Node) and not self._in_layout(node, level) and self._is_identity(node):
            node = node.args[0]
        return self._value(node, level) or self.inputs.get(level, {}).get(node)

    def _is_identity(self, node: Node) -> bool:
        module = self.modules.get(str(node.target)) if node.op == "call_module" else None
        return isinstance(module, nn.Identity) and not must_be_called(module)

    def _subsample(self, node: Node, level: int) -> Shortcut | None:
        """x[:, :, ::s, ::s]"""
        source, index = node.args
        value = self._value(source, level)
        everything = slice(None, None, None)
        if not isinstance(value, Conv | Activation) or not isinstance(index, tuple) or len(index) != 4:
            return None
        rows, columns = index[2:]
        if index[:2] != (everything, everything) or not isinstance(rows, slice) or rows != columns:
            return None
        step = rows.step
        if rows != slice(None, None, step) or step not in (1, 2):
            return None
        assert isinstance(source, Node)
        if not all(_channel_padding(user) is not None or _is_add(user) for user in node.users):
            return None
        activation = self._activation(source)
        return Shortcut(activation, activation.channels, stride=step)

    def _pad_channels(self, node: Node, level: int) -> Shortcut | None:
        value, padding = self._value(node.args[0], level), _channel_padding(node)
        if padding is None or not isinstance(value, Shortcut) or value.offset:
            return None
        if not all(_is_add(user) for user in node.users):
            return None
        return Shortcut(value.source, value.channels + sum(padding), value.stride, padding[0])

    def _is_pool(self, node: Node) -> bool:
        """The mean over all positions, which the kernels take on the way out."""
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            return (
                isinstance(module, nn.AdaptiveAvgPool2d)
                and _is_one(module.output_size)
                and not must_be_called(module)
            )
        if node.target in POOL:
            return len(node.args) == 2 and _is_one(node.args[1])
        if node.target not in MEAN:
            return False
        given = dict(zip(("input", "dim", "keepdim"), node.args, strict=False)) | node.kwargs
        axes = given.get("dim")
        if set(given) - {"input", "dim", "keepdim"} or not isinstance(axes, tuple | list):
            return False
        return set(axes) in PLANES and len(axes) == 2


def _channel_padding(node: Node) -> tuple[int, int] | None:
    """(before, after) of pad(x, (0, 0, 0, 0, before, after)) with zeros."""
    if node.target is not F.pad or len(node.args) != 2:
        return None
    options = dict(node.kwargs)
    if options.pop("mode", "constant") != "constant" or options.pop("value", None) or options:
        return None
    match node.args[1]:
        case (0, 0, 0, 0, int(before), int(after)) if before >= 0 and after >= 0:
            return before, after
    return None


def _is_add(node: Node) -> bool:
    return node.op != "call_module" and node.target in ADD


def _is_one(size: Any) -> bool:
    return size in (1, (1, 1), [1, 1])


def supported(module: nn.Conv2d) -> bool:
    """Convolutions the kernels can run."""
    padding = zero_padding(module)
    return (
        module.groups == 1
        and module.dilation == (1, 1)
        and module.stride in ((1, 1), (2, 2))
        and module.padding_mode == "zeros"
        and padding is not None
        and all(p < k for p, k in zip(padding, module.kernel_size, strict=True))
    )
