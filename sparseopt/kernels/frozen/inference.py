"""`compile_inference`: a frozen copy of a network, batch norm folded into the weights, on sparse kernels."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sparseopt.kernels.accelerated import BREAK_EVEN, find_pieces, sparsity, trace
from sparseopt.kernels.conv.region import check_image
from sparseopt.kernels.frozen.bands import Value, choose_bands
from sparseopt.kernels.frozen.program import Heads, Program, Step, extents_of, in_step
from sparseopt.kernels.linear.chain import SparseChain
from sparseopt.kernels.match.chains import Chain, Layer
from sparseopt.kernels.match.graph import Activation, Conv, Region, Shortcut
from sparseopt.kernels.match.heads import take_heads
from sparseopt.kernels.match.rewrite import Piece, rewrite
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.memory import zeros
from sparseopt.kernels.native.norm import Normed
from sparseopt.topology import Topology

# Weights of a chain of linear layers, below which torch's dense one takes less time than changing the layout.
SMALL = 1 << 16


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
    large = {SparseChain(each.content, topology): each for each in chains if size(each.content) >= SMALL}
    found: dict[FrozenRegion | SparseChain, Piece[Any]] = {**large}
    for region in regions:
        piece, heads = take_heads(model, region, frozenset().union(*(each.nodes for each in large.values())))
        found[FrozenRegion(region.content, heads, topology)] = piece
    sparse = {module: piece for module, piece in found.items() if sparsity(module, topology) >= BREAK_EVEN}
    for chain in sparse:
        for layer in chain.chain if isinstance(chain, SparseChain) else ():
            fold_into(layer)
    rewrite(traced, sparse)
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


def order_steps(region: Region, topology: Topology) -> list[Step]:
    """The convolutions so that whatever a sum adds is there before it."""
    steps: dict[Value, Step] = {}

    def add(conv: Conv, makes: Value, shortcut: Shortcut | None, *, relu: bool) -> None:
        parts = (None, 1, 0) if shortcut is None else (shortcut.source, shortcut.stride, shortcut.offset)
        steps[makes] = Step(conv, conv.mask(topology), *fold(conv), makes, *parts, relu)

    def need(value: Value) -> None:
        if value in steps or (isinstance(value, Activation) and value.main is None):
            return
        if isinstance(value, Conv):
            need(value.input)
            add(value, value, None, relu=False)
            return
        assert value.main is not None
        need(value.main.input)
        if value.shortcut is not None:
            need(value.shortcut.source)
        add(value.main, value, value.shortcut, relu=value.relu)

    for output in region.outputs:
        need(output.activation)
    return list(steps.values())


@torch.no_grad()
def fold_into(layer: Layer) -> None:
    """Put a layer's batch norm into its own weight and bias."""
    weight, bias = fold(layer)
    layer.module.weight.copy_(weight)
    layer.module.bias, layer.norm = nn.Parameter(bias, requires_grad=False), None


def fold(layer: Normed) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer with its batch norm inside."""
    module, norm = layer.module, layer.norm
    bias = zeros(layer.channels).double() if module.bias is None else module.bias.double()
    if norm is None:
        return module.weight, bias.float()
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError(
            f"the batch norm behind {layer.weight!r} has no running statistics: its output depends on the whole batch "
            "and cannot be folded; train with track_running_stats=True"
        )
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    bias = (bias - norm.running_mean.double()) * scale
    if norm.bias is not None:
        bias = bias + norm.bias.double()
    return (module.weight.double() * scale.view(-1, *[1] * (module.weight.dim() - 1))).float(), bias.float()


class FrozenRegion(nn.Module):
    """A region with constant weights. Everything that depends on the image size is prepared once a size."""

    def __init__(self, region: Region, heads: Heads, topology: Topology) -> None:
        super().__init__()
        self.region, self.heads = region, heads
        self.steps = order_steps(region, topology)
        self.lanes = operators().lanes()
        self._programs: dict[tuple[Any, ...], Program] = {}

    def weights(self) -> list[tuple[str, Tensor]]:
        return self.region.weights()

    def forward(self, *images: Tensor) -> tuple[Tensor, ...]:
        for image, activation in zip(images, self.region.inputs, strict=True):
            check_image(image, activation.channels)
        samples = images[0].shape[0]
        program = self.program(samples, *((image.shape[2], image.shape[3]) for image in images))
        return tuple(program.network.run(images))

    def program(self, samples: int, *sizes: tuple[int, int]) -> Program:
        key = (samples, *sizes)
        if key not in self._programs:
            self._programs[key] = self._program(samples, sizes)
        return self._programs[key]

    def _program(self, samples: int, sizes: tuple[tuple[int, int], ...]) -> Program:
        """What another batch of this size uses, if it is cut into as many bands, or a new one."""
        extents = extents_of(self.region.inputs, sizes, self.steps)
        bands = choose_bands(extents, samples, self.lanes) if in_step(extents, self.steps) else 1
        for (_, *others), program in self._programs.items():
            if others == list(sizes) and program.bands == bands:
                return program
        return Program(self.region, self.steps, self.heads, extents, bands, self.lanes)
