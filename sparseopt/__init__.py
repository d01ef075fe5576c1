"""Sparse training in PyTorch: RigL, SET and the SparseOpt skew correction around any optimizer."""

__version__ = "0.1.0"
