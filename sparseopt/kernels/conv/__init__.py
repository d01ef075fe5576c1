"""Convolutions in training: regions of a network that run without leaving the kernels' layout."""
