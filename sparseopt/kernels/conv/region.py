"""A region of the network as one autograd node."""

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sparseopt.kernels.conv.convolution import ConvLists, backward_border, build_lists
from sparseopt.kernels.conv.plan import RegionPlan
from sparseopt.kernels.conv.run import RegionRun
from sparseopt.kernels.conv.taped import Key, TapedRun, key_of
from sparseopt.kernels.match.graph import Conv, Region
from sparseopt.kernels.native.buffers import Buffers
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.norm import NormWeights
from sparseopt.kernels.native.once import differentiated_once
from sparseopt.kernels.native.packed import KernelWeight, PackedWeights, listed_for
from sparseopt.topology import Topology

KEPT_WIDTHS = 8  # image widths for which index lists are cached; the oldest are evicted first
EVALUATION_SAMPLES = 64  # without gradients the batch passes in shares of this size, which stay in the cache


class SparseRegion(nn.Module):
    """Runs a `Region` on the sparse kernels. Its parameters are the model's own and are not registered here."""

    def __init__(self, region: Region, topology: Topology, activations: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.topology, self.activations = topology, activations
        self.plan = RegionPlan(region)
        self.conv_weights = {conv: KernelWeight(conv.module, conv.weight, topology) for conv in region.convs}
        self._idle = Idle()
        self._lists: dict[tuple[Conv, int, int], ConvLists] = {}
        self._built_for = listed_for(topology)

    def weights(self) -> list[tuple[str, Tensor]]:
        weights = self.conv_weights.values()
        return [(weight.name, weight.parameter) for weight in weights if weight.name is not None]

    def parameters_of_region(self) -> Iterator[Tensor]:
        for conv in self.plan.region.convs:
            norm = conv.norm
            of_norm = () if norm is None else (norm.weight, norm.bias)
            for each in (self.conv_weights[conv].parameter, conv.module.bias, *of_norm):
                if each is not None:
                    yield each

    def lists(self, conv: Conv, height: int, width: int, border: int) -> ConvLists:
        key = (conv, width, backward_border(conv.module, height, width))
        if key not in self._lists:
            if len(self._lists) >= KEPT_WIDTHS * len(self.plan.region.convs):
                del self._lists[next(iter(self._lists))]
            weight = self.conv_weights[conv]
            self._lists[key] = build_lists(weight, height, width, border, operators().lanes())
        return self._lists[key]

    def start(self, key: Key | None = None) -> TapedRun:
        """A run with memory that is free: where there is one, that of a run before with the same key."""
        if self._built_for != listed_for(self.topology):
            self._lists.clear()
            self._built_for = listed_for(self.topology)
        return self._idle.take(key) or TapedRun(self._new_run(), key)

    def _new_run(self) -> RegionRun:
        memory = self._idle.memory() or Buffers(operators().lanes())
        return RegionRun(
            self.plan,
            self.conv_weights,
            self.lists,
            memory,
            operators(),
            half=self.activations == torch.bfloat16,
        )

    def key(self, images: tuple[Tensor, ...]) -> Key | None:
        return key_of(images, self.plan.region.convs, self.conv_weights, listed_for(self.topology))

    def forget(self) -> None:
        """Give back the memory of runs that are over, and the lists."""
        self._idle, self._lists = Idle(), {}

    def finish(self, run: TapedRun) -> None:
        self._idle.give(run)

    def forward(self, *images: Tensor) -> tuple[Tensor, ...]:
        """`GuardedPiece` has seen that the images fit: the kernels trust the shapes."""
        parameters = tuple(self.parameters_of_region())
        images = tuple(image.float() for image in images)
        if torch.is_grad_enabled() and any(each.requires_grad for each in (*images, *parameters)):
            return _RegionPass.apply(self, len(images), *images, *parameters)
        return self.evaluate(images)

    def evaluate(self, images: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Without gradients. Batch statistics need the whole batch at once; running statistics do not."""
        norms = (conv.norm for conv in self.plan.region.convs)
        batch_needed = any(
            norm is not None and (norm.training or norm.running_mean is None) for norm in norms
        )
        size = max(len(images[0]), 1) if batch_needed else EVALUATION_SAMPLES
        parts = []
        for share in zip(*(image.split(size) for image in images), strict=True):
            run = self.start()
            parts.append(run.forward(share))
            run.run.release()
            self.finish(run)
        return tuple(torch.cat(part) for part in zip(*parts, strict=True))


class Idle:
    """Runs that are over, with their memory: as many as were under way at once."""

    def __init__(self) -> None:
        self._runs: list[TapedRun] = []
        self._lock = threading.RLock()  # several threads may call one model

    def take(self, key: Key | None) -> TapedRun | None:
        with self._lock:
            for at in reversed(range(len(self._runs))):
                if key is not None and self._runs[at].key == key:
                    return self._runs.pop(at)
        return None

    def memory(self) -> Buffers | None:
        """That of the run that ended last; the run is gone then."""
        with self._lock:
            return self._runs.pop().run.buffers if self._runs else None

    def give(self, run: TapedRun) -> None:
        with self._lock:
            self._runs.append(run)

    def __deepcopy__(self, memo: dict[int, object]) -> "Idle":
        return Idle()


class _RegionPass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: SparseRegion, inputs: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        images = tensors[:inputs]
        ctx.region, ctx.run = region, region.start(region.key(images))
        ctx.inputs, ctx.parameters = inputs, tensors[inputs:]
        ctx.norms = NormWeights(region.plan.region.convs)
        ctx.packed = PackedWeights(region.conv_weights.values())
        return tuple(ctx.run.forward(images))

    @staticmethod
    @differentiated_once
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.run is None:
            raise RuntimeError(
                "an accelerated region can be differentiated once: its activations were overwritten by their gradients; "
                "for retain_graph=True use the model without accelerate"
            )
        ctx.norms.check()
        ctx.packed.check()
        run, ctx.run = ctx.run, None
        wanted = ctx.needs_input_grad[2 : 2 + ctx.inputs]
        of_inputs, of_parameters = run.backward(gradients, wanted)
        ctx.region.finish(run)
        return None, None, *of_inputs, *(of_parameters.get(parameter) for parameter in ctx.parameters)
