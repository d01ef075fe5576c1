"""Who is connected to whom: masks, fan-in, densities, ITOP."""

from sparseopt.topology.densities import active_counts, densities
from sparseopt.topology.layers import Layer
from sparseopt.topology.randomness import generator
from sparseopt.topology.start.find import find_layers, uncompiled
from sparseopt.topology.start.kinds import register_layer
from sparseopt.topology.start.masks import fan_in_masks
from sparseopt.topology.start.sparsify import sparsify
from sparseopt.topology.topology import Topology

__all__ = [
    "Layer",
    "Topology",
    "active_counts",
    "densities",
    "fan_in_masks",
    "find_layers",
    "generator",
    "register_layer",
    "sparsify",
    "uncompiled",
]
