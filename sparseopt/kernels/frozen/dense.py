"""A region by torch's own convolutions: what engines are compared with, and run where torch is faster."""

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from sparseopt.kernels.frozen.description import Convs, ConvStep, End, PoolStep

Images = tuple[Tensor, ...]


def faster_dense(
    convs: Convs, images: Images, run: Callable[[Images], Images]
) -> tuple[torch.memory_format, str] | None:
    """The memory format in which torch's own convolutions take less time than the kernels, and what that was."""
    sparse = shortest(lambda: run(images))
    formats = (torch.contiguous_format, torch.channels_last)
    times = {each: shortest(lambda each=each: DenseRegion(convs, each).run(images)) for each in formats}
    best = min(formats, key=lambda each: times[each])
    if times[best] >= sparse:
        return None
    return best, f"dense: {times[best] * 1e3:.3g} ms, {sparse * 1e3:.3g} ms on the sparse kernels"


def shortest(run: Callable[[], object]) -> float:
    """Seconds of the shortest of a few runs."""
    run()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


class DenseRegion:
    """A region by torch's own convolutions."""

    def __init__(
        self, convs: Convs, memory: torch.memory_format = torch.contiguous_format, reason: str = "dense"
    ) -> None:
        self.convs, self.memory, self.reason = convs, memory, reason
        self._weights = [
            step.weight.dense().to(memory_format=memory) if isinstance(step, ConvStep) else None
            for step in convs.steps
        ]

    @torch.no_grad()
    def run(self, images: Images) -> Images:
        values = [image.float().contiguous(memory_format=self.memory) for image in images]
        for step, weight in zip(self.convs.steps, self._weights, strict=True):
            if isinstance(step, PoolStep):
                values.append(F.max_pool2d(values[step.input], step.kernel, step.stride, step.padding))
            else:
                assert weight is not None
                values.append(_convolve(step, weight, values))
        return tuple(_leave(end, values[end.value]) for end in self.convs.ends)


def _convolve(step: ConvStep, weight: Tensor, values: list[Tensor]) -> Tensor:
    y = F.conv2d(values[step.input], weight, step.bias, step.stride, step.padding)
    if step.shortcut is not None:
        added = values[step.shortcut][..., :: step.shortcut_stride, :: step.shortcut_stride]
        if added.shape[-3] == step.channels:
            y = y + added  # of another size, torch spreads the smaller one
        else:
            y[..., step.shortcut_offset : step.shortcut_offset + added.shape[-3], :, :] += added
    return torch.relu(y) if step.relu else y


def _leave(end: End, value: Tensor) -> Tensor:
    if not end.pooled:
        return value.contiguous()
    mean = value.mean((-2, -1))
    return mean if end.head is None else F.linear(mean, end.head.weight.dense(), end.head.bias)
