"""Sparse kernels for the CPU: training and inference that are faster because the network is sparse."""

from sparseopt.kernels.accelerated import Unsupported, accelerate, restore
from sparseopt.kernels.build import BuildError
from sparseopt.kernels.file import load, save
from sparseopt.kernels.inference import Engine, compile_inference
from sparseopt.kernels.measured import Choice, accelerate_where_faster, measure

__all__ = [
    "BuildError",
    "Choice",
    "Engine",
    "Unsupported",
    "accelerate",
    "accelerate_where_faster",
    "compile_inference",
    "load",
    "measure",
    "restore",
    "save",
]
