"""ResNet-50 for ImageNet (He et al. 2016), with the stride in the 3 x 3 convolution, as is usual today.

Parameters carry the names that torchvision gives them, so that its checkpoints load.
"""

from torch import Tensor, nn

EXPANSION = 4


class ResNet50(nn.Module):
    """Stem, then stages of 3, 4, 6 and 3 bottleneck blocks, with all channels multiplied by `width`."""

    def __init__(self, classes: int = 1000, *, width: float = 1.0) -> None:
        super().__init__()
        stem, *stages = (max(1, round(channels * width)) for channels in (64, 64, 128, 256, 512))
        self.conv1 = nn.Conv2d(3, stem, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(stem, stages[0], 3, stride=1)
        self.layer2 = _stage(stages[0] * EXPANSION, stages[1], 4, stride=2)
        self.layer3 = _stage(stages[1] * EXPANSION, stages[2], 6, stride=2)
        self.layer4 = _stage(stages[2] * EXPANSION, stages[3], 3, stride=2)
        self.fc = nn.Linear(stages[3] * EXPANSION, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        outputs = channels * EXPANSION
        self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def _stage(inputs: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(inputs, channels, stride)
    return nn.Sequential(first, *(Bottleneck(channels * EXPANSION, channels, 1) for _ in range(blocks - 1)))
