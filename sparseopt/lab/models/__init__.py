"""The paper's networks (MLP, ResNet-20/32/56 for CIFAR, ResNet-50 for ImageNet) and a small transformer."""

from sparseopt.lab.models.decoder import Decoder
from sparseopt.lab.models.from_timm import timm_model
from sparseopt.lab.models.mlp import mlp
from sparseopt.lab.models.resnet_cifar import CifarResNet, Shortcut
from sparseopt.lab.models.resnet_imagenet import ResNet50

__all__ = ["CifarResNet", "Decoder", "ResNet50", "Shortcut", "mlp", "timm_model"]
