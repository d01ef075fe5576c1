"""Sparse kernels for the CPU: training and inference that are faster because the network is sparse."""

from sparseopt.kernels.accelerated import accelerate, restore

__all__ = ["accelerate", "restore"]
