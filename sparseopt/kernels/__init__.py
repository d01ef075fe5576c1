"""Sparse kernels for the CPU: training and inference that are faster because the network is sparse."""

from sparseopt.kernels.accelerated import Unsupported, accelerate, restore
from sparseopt.kernels.build import BuildError
from sparseopt.kernels.file import load, save
from sparseopt.kernels.inference import Engine, compile_inference

__all__ = [
    "BuildError",
    "Engine",
    "Unsupported",
    "accelerate",
    "compile_inference",
    "load",
    "restore",
    "save",
]
