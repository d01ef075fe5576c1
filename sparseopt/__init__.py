"""Sparse training in PyTorch: RigL, SET and the SparseOpt skew correction around any optimizer.

>>> import torch, sparseopt as so
>>> from torch import nn
>>> model = nn.Sequential(nn.Linear(784, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 10))
>>> topology = so.sparsify(model, sparsity=0.95)
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
>>> optimizer = so.SparseOpt(optimizer, topology, so.RigL(total_steps=10_000))  # from here on, an ordinary optimizer
"""

from sparseopt.loading import interruptible

with interruptible():
    import torch  # noqa: F401 - what takes a second or two

from sparseopt import analysis, kernels, methods, optim, topology
from sparseopt.kernels import accelerate, compile_inference, load, load_engine
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

__version__ = "0.2.0"

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
