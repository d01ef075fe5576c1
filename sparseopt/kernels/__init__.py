"""Sparse kernels for the CPU: training and inference that are faster because the network is sparse."""

from sparseopt.kernels.accelerated import Unsupported, accelerate, accelerated_layers, restore, summary
from sparseopt.kernels.frozen.engine import Engine, load_engine
from sparseopt.kernels.frozen.file import load, save
from sparseopt.kernels.frozen.inference import compile_inference
from sparseopt.kernels.measured import Choice, accelerate_where_faster, faster_layers, measure
from sparseopt.kernels.native.build import BuildError
from sparseopt.kernels.semi_structured import to_semi_structured

__all__ = [
    "BuildError",
    "Choice",
    "Engine",
    "Unsupported",
    "accelerate",
    "accelerate_where_faster",
    "accelerated_layers",
    "compile_inference",
    "faster_layers",
    "load",
    "load_engine",
    "measure",
    "restore",
    "save",
    "summary",
    "to_semi_structured",
]
