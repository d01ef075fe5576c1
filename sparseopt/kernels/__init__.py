"""Sparse kernels for the CPU: training and inference that are faster because the network is sparse."""

from sparseopt.kernels.accelerate import accelerate, restore

__all__ = ["accelerate", "restore"]
