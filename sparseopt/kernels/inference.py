"""`compile_inference`: a frozen copy of a network, batch norm folded into the weights, on sparse kernels."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sparseopt.kernels import pattern
from sparseopt.kernels.accelerated import BREAK_EVEN, find_pieces, sparsity, trace
from sparseopt.kernels.buffers import Shape
from sparseopt.kernels.build import operators
from sparseopt.kernels.convolution import axes
from sparseopt.kernels.graph import Activation, Conv, Region
from sparseopt.kernels.linear import Chain, SparseChain
from sparseopt.kernels.memory import floats, integers, zeros
from sparseopt.kernels.rewrite import Piece, rewrite
from sparseopt.kernels.run import Plan, check_sum
from sparseopt.topology import Topology

ALIGN = 16  # floats: a cache line
SMALL = (
    1 << 16
)  # weights of a chain of linear layers, below which torch's dense one takes less time than changing the layout
SLACK = 256  # floats behind the arena, which the last vector of a row may read


def compile_inference(model: nn.Module, topology: Topology) -> "Engine":
    """The network as it is now, for inference alone: `engine(x)` is what `model.eval()(x)` would be.

    The engine is a copy: later changes of the model do not reach it. Convolutions and linear layers run on their active weights
    only, batch norm costs nothing, and a batch passes through all layers of a region in shares that stay in the cache. Raises
    `BuildError` or `Unsupported` where the kernels cannot run.

    >>> import torch, sparseopt as so
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    >>> engine = so.compile_inference(model, so.sparsify(model, sparsity=0.9))
    >>> engine(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 16, 32, 32])
    """
    operators()
    model, topology = copy.deepcopy((model, topology))
    model.eval().requires_grad_(False)
    traced = trace(model)
    regions, chains = find_pieces(model, traced.graph)
    found: dict[FrozenRegion | SparseChain, Piece[Any]] = {
        **{FrozenRegion(each.content, topology): each for each in regions},
        **{SparseChain(each.content, topology): each for each in chains if size(each.content) >= SMALL},
    }
    rewrite(
        traced, {module: piece for module, piece in found.items() if sparsity(module, topology) >= BREAK_EVEN}
    )
    return Engine(traced)


def size(chain: Chain) -> int:
    return sum(layer.module.weight.numel() for layer in chain)


class Engine:
    """A compiled network. Call it with what the model takes."""

    def __init__(self, program: GraphModule) -> None:
        self.program = program

    @torch.inference_mode()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.program.forward(*args, **kwargs)


@dataclass(frozen=True)
class Step:
    """One convolution with what is folded into it; `makes` is an activation, or the projection a sum adds."""

    conv: Conv
    makes: Activation | Conv
    shortcut: Activation | Conv | None
    shortcut_stride: int
    shortcut_offset: int
    relu: bool


def order_steps(region: Region) -> list[Step]:
    """The convolutions so that whatever a sum adds is there before it."""
    steps: dict[Activation | Conv, Step] = {}

    def need(value: Activation | Conv) -> None:
        if value in steps or (isinstance(value, Activation) and value.main is None):
            return
        if isinstance(value, Conv):
            need(value.input)
            steps[value] = Step(value, value, None, 1, 0, relu=False)
            return
        assert value.main is not None
        need(value.main.input)
        added = value.shortcut
        if added is None:
            steps[value] = Step(value.main, value, None, 1, 0, value.relu)
            return
        need(added.source)
        steps[value] = Step(value.main, value, added.source, added.stride, added.offset, value.relu)

    for output in region.outputs:
        need(output.activation)
    return list(steps.values())


def fold(conv: Conv) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution with its batch norm inside."""
    module, norm = conv.module, conv.norm
    bias = zeros(conv.channels).double() if module.bias is None else module.bias.double()
    if norm is None:
        return module.weight, bias.float()
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError(
            f"the batch norm behind {conv.weight!r} has no running statistics: its output depends on the whole batch "
            "and cannot be folded; train with track_running_stats=True"
        )
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    bias = (bias - norm.running_mean.double()) * scale
    if norm.bias is not None:
        bias = bias + norm.bias.double()
    return (module.weight.double() * scale.view(-1, 1, 1, 1)).float(), bias.float()


class FrozenRegion(nn.Module):
    """A region with constant weights. Everything that depends on the image size is prepared once a size."""

    def __init__(self, region: Region, topology: Topology) -> None:
        super().__init__()
        self.plan, self.region = Plan(region), region
        self.steps = order_steps(region)
        self.masks = {
            step.conv: topology.masks.get(
                step.conv.weight, torch.ones_like(step.conv.module.weight, dtype=torch.bool)
            )
            for step in self.steps
        }
        folded = {step.conv: fold(step.conv) for step in self.steps}
        self.values = [folded[step.conv][0][self.masks[step.conv]].contiguous() for step in self.steps]
        self.biases = [folded[step.conv][1] for step in self.steps]
        self.infer, self.lanes = operators().infer.default, operators().lanes()
        self._programs: dict[tuple[int, ...], Program] = {}

    def weights(self) -> list[tuple[str, Tensor]]:
        return [(conv.weight, conv.module.weight) for conv in self.region.convs]

    def forward(self, *images: Tensor) -> tuple[Tensor, ...]:
        samples = len(images[0])
        one_sample = samples < self.lanes // 2
        program = self.program([image.shape[2:] for image in images], 1 if one_sample else self.lanes)
        outputs = [floats(samples, *shape) for shape in program.output_shapes]
        self.infer(
            [image.float().contiguous() for image in images],
            *program.constants,
            program.arenas(),
            one_sample,
            *program.ends,
            outputs,
        )
        return tuple(outputs)

    def program(self, sizes: list[torch.Size], lanes: int) -> "Program":
        key = (lanes, *(side for size in sizes for side in size))
        if key not in self._programs:
            self._programs[key] = Program(self, [(size[0], size[1]) for size in sizes], lanes)
        return self._programs[key]


class Program:
    """The steps of a frozen region for one image size: which slot of the arena each reads and writes.

    Slots are used again when nothing reads them any more, by values of the same shape alone, so that borders stay zero.
    """

    def __init__(self, region: FrozenRegion, sizes: list[tuple[int, int]], lanes: int) -> None:
        self.lanes = lanes
        self._table: list[tuple[int, int, int, int, int]] = []
        self._free: dict[tuple[int, int, int, int], list[int]] = {}
        self._slot: dict[Activation | Conv, int] = {}
        self._floats = 0
        inputs = region.region.inputs
        for activation, size in zip(inputs, sizes, strict=True):
            self._slot[activation] = self._take(activation.channels, *size, region.plan.border[activation])
        layers: list[list[int]] = []
        self._patterns: list[pattern.Pattern] = []
        left = self._uses(region)
        for step in region.steps:
            layers.append(self._add(region, step))
            for value in (step.conv.input, step.shortcut):
                if value is not None:
                    left[value] -= 1
                    if not left[value]:
                        self._give(self._slot[value])
        outputs = region.region.outputs
        written = [self._slot[each.activation] for each in outputs]
        self.output_shapes = [
            self._table[slot][1 : 2 if output.pooled else 4]
            for slot, output in zip(written, outputs, strict=True)
        ]
        # Arguments of the kernel that stay the same, in its order: before the arenas, and after them.
        self.constants = (
            integers([self._slot[each] for each in inputs]),
            integers(self._table),
            integers(layers),
            [each.start for each in self._patterns],
            [each.offset for each in self._patterns],
            region.values,
            region.biases,
        )
        self.ends = (
            integers(written),
            integers([output.pooled for output in outputs]),
        )
        self._arenas = zeros(0, 0)

    @staticmethod
    def _uses(region: FrozenRegion) -> dict[Activation | Conv, int]:
        """How often each value is read; an output is read once more, after the last step."""
        uses: dict[Activation | Conv, int] = dict.fromkeys(region.region.inputs, 0)
        uses |= {step.makes: 0 for step in region.steps}
        for step in region.steps:
            uses[step.conv.input] += 1
            if step.shortcut is not None:
                uses[step.shortcut] += 1
        for output in region.region.outputs:
            uses[output.activation] += 1
        return uses

    def _add(self, region: FrozenRegion, step: Step) -> list[int]:
        """Fields of one layer, as the kernel reads them."""
        conv, source = step.conv, self._slot[step.conv.input]
        _, channels, height, width, border = self._table[source]
        rows, columns = axes(conv.module, height, width)
        read = pattern.geometry(channels, width, border, self.lanes)
        self._patterns.append(pattern.conv_forward(region.masks[conv], (rows.padding, columns.padding), read))
        own_border = region.plan.border[step.makes] if isinstance(step.makes, Activation) else 0
        self._slot[step.makes] = self._take(conv.channels, rows.output, columns.output, own_border)
        shortcut = -1
        if step.shortcut is not None:
            shortcut = self._slot[step.shortcut]
            _, channels, height, width, border = self._table[shortcut]
            check_sum(
                (rows.output, columns.output), Shape(1, height, channels, width, border), step.shortcut_stride
            )
        return [
            *(source, self._slot[step.makes], shortcut),
            *(rows.stride, step.shortcut_stride, step.shortcut_offset, int(step.relu)),
        ]

    def _take(self, channels: int, height: int, width: int, border: int) -> int:
        free = self._free.setdefault((channels, height, width, border), [])
        if free:
            return free.pop()
        self._table.append((self._floats, channels, height, width, border))
        size = channels * (height + 2 * border) * (width + 2 * border) * self.lanes
        self._floats += -(-size // ALIGN) * ALIGN
        return len(self._table) - 1

    def _give(self, slot: int) -> None:
        _, *shape = self._table[slot]
        self._free[(shape[0], shape[1], shape[2], shape[3])].append(slot)

    def arenas(self) -> Tensor:
        """Memory for every thread."""
        threads = torch.get_num_threads()
        if len(self._arenas) < threads:
            self._arenas = zeros(threads, self._floats + SLACK)
        return self._arenas
