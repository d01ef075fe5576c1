"""Sparse training in PyTorch: RigL, SET and the SparseOpt skew correction around any optimizer.

>>> import torch, sparseopt as so
>>> from torch import nn
>>> model = nn.Sequential(nn.Linear(784, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 10))
>>> topology = so.sparsify(model, sparsity=0.95)
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
>>> optimizer = so.SparseOpt(optimizer, topology, so.RigL(total_steps=10_000))  # from here on, an ordinary optimizer
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparseopt.loading import interruptible

with interruptible():
    import torch  # noqa: F401 - what takes a second or two

from sparseopt import methods, optim, topology
from sparseopt.methods import (
    ACDC,
    DSR,
    GMP,
    GSE,
    MEST,
    NM,
    SET,
    SNFS,
    SRSTE,
    AnnealedTopK,
    DeepR,
    GraNet,
    Method,
    RigL,
    SRigL,
    Static,
    TopKAST,
)
from sparseopt.optim import HAM, SparseOpt, average, skew_factors
from sparseopt.topology import Layer, Topology, densities, register_layer, sparsify

if TYPE_CHECKING:
    from sparseopt import analysis, kernels
    from sparseopt.kernels import accelerate, compile_inference, load, load_engine

__version__ = "0.2.0"

# Imported when first asked for: a training loop that needs neither starts without them.
LATER = {
    **dict.fromkeys(("accelerate", "compile_inference", "load", "load_engine"), "sparseopt.kernels"),
    **{name: f"sparseopt.{name}" for name in ("analysis", "kernels")},
}

__all__ = [
    "ACDC",
    "DSR",
    "GMP",
    "GSE",
    "HAM",
    "MEST",
    "NM",
    "SET",
    "SNFS",
    "SRSTE",
    "AnnealedTopK",
    "DeepR",
    "GraNet",
    "Layer",
    "Method",
    "RigL",
    "SRigL",
    "SparseOpt",
    "Static",
    "TopKAST",
    "Topology",
    "accelerate",
    "analysis",
    "average",
    "compile_inference",
    "densities",
    "kernels",
    "load",
    "load_engine",
    "methods",
    "optim",
    "register_layer",
    "skew_factors",
    "sparsify",
    "topology",
]


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(LATER[name])
    return module if LATER[name] == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER})
