"""Residual networks for 32 x 32 images: 6n + 2 layers in three stages of n blocks (He et al. 2016, section 4.2).

Where a stage halves the image and doubles the channels, the shortcut is a 3 x 3 convolution with BatchNorm
("convolution": the network of the paper's authors, as their code of the year before has it, which leaves these shortcuts
dense), a 1 x 1 convolution with BatchNorm ("projection"), or every second pixel with the new channels zero ("padding", which
has no parameters). Convolutions and the classifier start normally distributed with variance 2 / fan_in.
"""

from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import pad, relu

Shortcut = Literal["convolution", "projection", "padding"]

KERNEL = {"convolution": 3, "projection": 1}


class CifarResNet(nn.Module):
    """ResNet-20, 32 or 56 with all channels multiplied by `width`."""

    def __init__(
        self, depth: int, classes: int, *, width: float = 1.0, shortcut: Shortcut = "convolution"
    ) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 6n + 2 for a whole n, such as 20, 32 or 56; got {depth}")
        blocks = (depth - 2) // 6
        stem, *stages = (max(1, round(channels * width)) for channels in (16, 16, 32, 64))
        self.conv = nn.Conv2d(3, stem, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(stem)
        self.stages = nn.Sequential()
        inputs = stem
        for number, channels in enumerate(stages):
            self.stages.append(_stage(inputs, channels, blocks, 1 if number == 0 else 2, shortcut))
            inputs = channels
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn(self.conv(x)))
        return self.fc(self.stages(x).mean((2, 3)))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        if stride == 1 and inputs == channels:
            self.shortcut: nn.Module = nn.Identity()
        elif shortcut == "padding":
            self.shortcut = PaddingShortcut(channels - inputs, stride)
        else:
            size = KERNEL[shortcut]
            convolution = nn.Conv2d(inputs, channels, size, stride, padding=size // 2, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class PaddingShortcut(nn.Module):
    """Every `stride`-th pixel, with channels of zeros added, half of them in front."""

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.before, self.after, self.stride = extra // 2, extra - extra // 2, stride

    def forward(self, x: Tensor) -> Tensor:
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def _stage(inputs: int, channels: int, blocks: int, stride: int, shortcut: Shortcut) -> nn.Sequential:
    first = BasicBlock(inputs, channels, stride, shortcut)
    return nn.Sequential(first, *(BasicBlock(channels, channels, 1, shortcut) for _ in range(blocks - 1)))
