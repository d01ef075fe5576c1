"""A part of a network that runs on the sparse kernels where these give what the dense network would, else as it was written."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad

from sparseopt.kernels.conv.convolution import axes
from sparseopt.kernels.conv.region import SparseRegion
from sparseopt.kernels.linear.chain import SparseChain
from sparseopt.kernels.match.graph import Activation, Conv, Region
from sparseopt.kernels.match.modules import weight_shape
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.memory import HighWater, floats
from sparseopt.kernels.native.packed import NOTHING
from sparseopt.kernels.native.pattern import positions
from sparseopt.topology import Topology

logger = logging.getLogger(__name__)

SparsePiece = SparseRegion | SparseChain
Size = tuple[int, int]
Weights = list[tuple[str, Tensor]]

KEPT_SIZES = 64  # image sizes whose answer is cached


def sparsity(piece: SparsePiece, topology: Topology) -> float:
    """Share of zeros over all weights of a piece."""
    weights = piece.weights()
    sparse = topology.layers
    active = sum(topology.active(name) if name in sparse else each.numel() for name, each in weights)
    return 1 - active / sum(topology.size(name) if name in sparse else each.numel() for name, each in weights)


class GuardedPiece(nn.Module):
    """`sparse` and `dense` compute the same from the same parameters, which are the model's own.

    While the share of zeros is below `break_even`, the piece runs densely: under GMP or AC/DC it may be so for a time.
    """

    def __init__(
        self, sparse: SparsePiece, dense: nn.Module, topology: Topology, break_even: float = 0.0
    ) -> None:
        super().__init__()
        self.sparse, self.dense, self.topology, self.break_even = sparse, dense, topology, break_even
        self._zeros: tuple[int, float] | None = None  # the share of zeros, for a version of the topology
        self.inputs: tuple[Tensor, ...] | None = (
            None  # those of the next call are kept here, if it is not None
        )
        self._packed = {
            name
            for name, _ in sparse.weights()
            if name in topology.layers and topology.packed(name) is not None
        }
        self._told: set[str] = set()
        self._water = HighWater()
        self._sizes: dict[tuple[Size, ...], bool] = {}
        self._positions: dict[
            str, tuple[int, Tensor]
        ] = {}  # of active weights, for a version of the topology

    @_disable_dynamo  # torch.compiler.disable takes a second to import
    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.inputs is not None:
            self.inputs = tuple(each.detach().clone().requires_grad_(each.requires_grad) for each in inputs)
        self._water.reached(sum(each.numel() for each in inputs))
        if not self.on_kernels(inputs):
            return self.dense(*inputs)
        outputs = self.sparse(*inputs)
        if torch.is_autocast_enabled("cpu"):  # what follows is given what the dense layers would give it
            lower = torch.get_autocast_dtype("cpu")
            return tuple(each.to(lower) for each in outputs)
        return outputs

    def zeros(self) -> float:
        """Share of zeros under the masks in force. Where it has become too small, the kernels' memory is given back."""
        version = self.topology.version
        if self._zeros is None or self._zeros[0] != version:
            self._zeros = version, sparsity(self.sparse, self.topology)
            if self._zeros[1] < self.break_even:
                self.sparse.forget()
        return self._zeros[1]

    def pays(self) -> bool:
        """Are there zeros enough now?"""
        return self.zeros() >= self.break_even

    def on_kernels(self, inputs: Sequence[Tensor]) -> bool:
        if not self.pays():
            return False
        if forward_ad._current_level >= 0:  # derivatives forward, which the kernels have none of
            return False
        weights = self.sparse.weights()
        return (
            self._right_kind(inputs, weights)
            and self._fits(inputs, weights)
            and self._zero_outside_masks(weights)
        )

    def _right_kind(self, inputs: Sequence[Tensor], weights: Weights) -> bool:
        """float32 on the CPU. Under autocast, inputs come in half precision and the kernels compute in float32 all the same."""
        lower = torch.is_autocast_enabled("cpu")
        return all(
            type(each) in (Tensor, nn.Parameter)
            and each.is_cpu
            and not each.is_neg()  # negative only by a bit that the kernels do not see
            and (each.dtype == torch.float32 or (lower and each.is_floating_point()))
            for each in inputs
        ) and all(each.is_cpu and each.dtype == torch.float32 for _, each in weights)

    def _fits(self, inputs: Sequence[Tensor], weights: Weights) -> bool:
        if isinstance(self.sparse, SparseChain):
            shapes = self.sparse.lists().shapes
            as_listed = all(
                name in self._packed or weight.shape == shape
                for (name, weight), shape in zip(weights, shapes, strict=True)
            )
            return as_listed and _fits_chain(self.sparse, shapes, inputs[0])
        region = self.sparse.plan.region
        for image, activation in zip(inputs, region.inputs, strict=True):
            if (
                image.dim() != 4
                or image.shape[1] != activation.channels
                or len(image) != len(inputs[0])
                or not len(image)
            ):
                return False
        sizes = tuple((image.shape[2], image.shape[3]) for image in inputs)
        if sizes not in self._sizes:
            if len(self._sizes) >= KEPT_SIZES:
                self._sizes.clear()
            self._sizes[sizes] = sizes_fit(region, sizes)
        return self._sizes[sizes]

    def _zero_outside_masks(self, weights: Weights) -> bool:
        """The kernels ignore weights outside the masks: they must be zero, and are unless other code has written to them."""
        outside = [name for name, weight in weights if self._has_weights_outside(name, weight)]
        for name in outside:
            if name not in self._told:
                logger.warning(
                    "%s has weights outside its mask that are not zero: it runs densely until topology.apply() sets them to "
                    "zero, or a topology of their own is made with sparsify(model, ..., masks='nonzero')",
                    name,
                )
        self._told = set(outside)
        return not outside

    def _has_weights_outside(self, name: str, weight: Tensor) -> bool:
        topology = self.topology
        if name in self._packed or topology.parameters.get(name) is not weight:
            return False
        if topology.masks[name].shape != weight.shape:
            return True
        version, position = self._positions.get(name, (None, None))
        if version != topology.version or position is None:
            position = positions(topology.masks[name])
            self._positions[name] = (topology.version, position)
        weight = weight.detach().contiguous()
        active = floats(*position.shape)
        operators().gather([weight], [position], [NOTHING], [active])
        return operators().nonzeros(weight) != operators().nonzeros(active)


def _fits_chain(piece: SparseChain, shapes: Sequence[torch.Size], x: Tensor) -> bool:
    if not x.dim() or (any(layer.norm is not None for layer in piece.chain) and (x.dim() != 2 or not len(x))):
        return False  # batch norm takes the second axis for the channels, and leaves empty batches alone
    features = x.shape[-1]
    for layer, shape in zip(piece.chain, shapes, strict=True):
        bias = layer.module.bias
        if len(shape) != 2 or shape[1] != features or (bias is not None and bias.shape != shape[:1]):
            return False
        if layer.norm is not None and layer.norm.num_features != shape[0]:
            return False
        features = shape[0]
    return True


def sizes_fit(region: Region, sizes: Sequence[Size]) -> bool:
    """Whether all images have a size, and those that are added up the same one: torch would spread the smaller one."""
    found: dict[Activation | Conv, Size] = dict(zip(region.inputs, sizes, strict=True))

    def size_of(value: Activation | Conv) -> Size:
        if value not in found:
            if isinstance(value, Conv):
                rows, columns = axes(value.module, *size_of(value.input))
                found[value] = (rows.output, columns.output)
            else:
                assert value.main is not None
                found[value] = size_of(value.main)
        return found[value]

    for conv in region.convs:
        shape, bias = weight_shape(conv.module), conv.module.bias
        known = (conv.module.out_channels, conv.module.in_channels, *conv.module.kernel_size)
        if shape != known or (bias is not None and bias.shape != known[:1]) or min(size_of(conv)) < 1:
            return False
    for each in region.activations():
        shortcut = each.shortcut
        if shortcut is not None:
            added = size_of(shortcut.source)
            if size_of(each) != tuple(-(-size // shortcut.stride) for size in added):
                return False
    return True
