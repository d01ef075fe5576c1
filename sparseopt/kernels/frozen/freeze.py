"""From what was found in a trace to data: batch norm folded into the weights, values numbered in the order they are made."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from sparseopt.kernels.frozen.description import (
    Convs,
    ConvStep,
    End,
    Head,
    Linears,
    LinearStep,
    SparseWeight,
)
from sparseopt.kernels.match.chains import Chain
from sparseopt.kernels.match.graph import Activation, Conv, Region, Shortcut
from sparseopt.kernels.match.modules import zero_padding
from sparseopt.kernels.native.memory import zeros
from sparseopt.kernels.native.norm import Normed

Value = Activation | Conv


def freeze_region(region: Region, heads: Mapping[int, nn.Linear], names: Mapping[nn.Module, str]) -> Convs:
    """`heads`: the linear layers behind means, by the number of the output."""
    steps = _Steps(region)
    for output in region.outputs:
        steps.need(output.activation)
    return Convs(
        tuple(each.channels for each in region.inputs),
        tuple(steps.made),
        tuple(
            End(steps.number[each.activation], each.pooled, _head(heads.get(index), names))
            for index, each in enumerate(region.outputs)
        ),
    )


def freeze_chain(chain: Chain) -> Linears:
    steps = []
    for layer in chain:
        weight, bias = fold(layer)
        steps.append(
            LinearStep(layer.weight.removesuffix(".weight"), SparseWeight.of(weight), bias, layer.activation)
        )
    return Linears(tuple(steps), flat=any(layer.norm is not None for layer in chain))


class _Steps:
    """The convolutions so that whatever a sum adds is there before it."""

    def __init__(self, region: Region) -> None:
        self.number: dict[Value, int] = {each: index for index, each in enumerate(region.inputs)}
        self.made: list[ConvStep] = []

    def need(self, value: Value) -> None:
        waiting = [value]
        while waiting:  # a loop: networks may be deeper than Python's stack
            each = waiting[-1]
            before = next((source for source in _sources(each) if source not in self.number), None)
            if each in self.number:
                waiting.pop()
            elif before is not None:
                waiting.append(before)
            elif isinstance(each, Conv):
                self._add(each, each, None, relu=False)
            else:
                assert each.main is not None
                self._add(each.main, each, each.shortcut, relu=each.relu)

    def _add(self, conv: Conv, makes: Value, shortcut: Shortcut | None, *, relu: bool) -> None:
        weight, bias = fold(conv)
        padding = zero_padding(conv.module)
        assert padding is not None
        self.number[makes] = len(self.number)
        self.made.append(
            ConvStep(
                None if conv.weight is None else conv.weight.removesuffix(".weight"),
                self.number[conv.input],
                self.number[makes],
                SparseWeight.of(weight),
                bias,
                conv.module.stride[0],
                padding,
                relu,
                *(() if shortcut is None else self._parts(shortcut)),
            )
        )

    def _parts(self, shortcut: Shortcut) -> tuple[int, int, int]:
        return self.number[shortcut.source], shortcut.stride, shortcut.offset


def _sources(value: Value) -> Iterator[Value]:
    if isinstance(value, Conv):
        yield value.input
    elif value.main is not None:
        yield value.main.input
        if value.shortcut is not None:
            yield value.shortcut.source


def _head(module: nn.Linear | None, names: Mapping[nn.Module, str]) -> Head | None:
    if module is None:
        return None
    bias = zeros(module.out_features) if module.bias is None else module.bias.detach()
    return Head(names[module], SparseWeight.of(module.weight), bias)


@torch.no_grad()
def fold(layer: Normed) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer with its batch norm inside."""
    module, norm = layer.module, layer.norm
    bias = zeros(layer.channels).double() if module.bias is None else module.bias.double()
    if norm is None:
        return module.weight, bias.float()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    bias = (bias - norm.running_mean.double()) * scale
    if norm.bias is not None:
        bias = bias + norm.bias.double()
    return (module.weight.double() * scale.view(-1, *[1] * (module.weight.dim() - 1))).float(), bias.float()
