"""A network as the convolution kernels see it: convolutions that read activations.

    x ──▶ Conv ──▶ z ──▶ (batch norm) ──┐
                                        ├─▶ sum ─▶ (ReLU) ──▶ Activation
          another Activation or Conv ───┘

An `Activation` is `relu(norm(z) + shortcut)`, with every part but z optional; it is never computed on its own, but by the
convolution that reads it. A `Region` is all convolutions and activations that can run without leaving the kernels' layout.
"""

from dataclasses import dataclass, field

from torch import nn


@dataclass(eq=False)
class Conv:
    """A convolution with the batch norm behind it. `weight` is the weight's name in the model, None for an average pooling,
    whose weights are constant."""

    input: "Activation"
    module: nn.Conv2d
    weight: str | None
    norm: nn.BatchNorm2d | None = None

    @property
    def channels(self) -> int:
        return self.module.out_channels


@dataclass(frozen=True)
class Shortcut:
    """What a sum adds: every `stride`-th position of an activation, its channels from `offset` on; or a projection."""

    source: "Activation | Conv"
    channels: int
    stride: int = 1
    offset: int = 0


@dataclass(eq=False)
class Activation:
    """`main` is None for an input of the region, which has `channels` and nothing else."""

    main: Conv | None
    channels: int
    shortcut: Shortcut | None = None
    relu: bool = False


@dataclass(frozen=True)
class Output:
    """What leaves a region: an activation as an image, or its mean over all positions."""

    activation: Activation
    pooled: bool


@dataclass
class Region:
    """Convolutions in the order they run, the activations that come in and those that go out."""

    convs: list[Conv] = field(default_factory=list)
    inputs: list[Activation] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)

    def readers(self, activation: Activation) -> list[Conv]:
        return [conv for conv in self.convs if conv.input is activation]

    def activations(self) -> list[Activation]:
        """All activations, those that read others after them."""
        found = dict.fromkeys(self.inputs)
        for each in [*(conv.input for conv in self.convs), *(output.activation for output in self.outputs)]:
            self._collect(each, found)
        return list(found)

    def _collect(self, activation: Activation, found: dict[Activation, None]) -> None:
        if activation in found:
            return
        if activation.main is not None:
            self._collect(activation.main.input, found)
        if activation.shortcut is not None:
            source = activation.shortcut.source
            self._collect(source.input if isinstance(source, Conv) else source, found)
        found[activation] = None
