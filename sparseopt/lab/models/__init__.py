"""The paper's networks: MLP, ResNet-20/32/56 for CIFAR, ResNet-50 for ImageNet."""

from sparseopt.lab.models.from_timm import timm_model
from sparseopt.lab.models.mlp import mlp
from sparseopt.lab.models.resnet_cifar import CifarResNet, Shortcut
from sparseopt.lab.models.resnet_imagenet import ResNet50

__all__ = ["CifarResNet", "ResNet50", "Shortcut", "mlp", "timm_model"]
