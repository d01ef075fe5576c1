"""Corrections that are controls: what is left of the effect when the right factors are given to the wrong neurons?"""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

import sparseopt as so

CorrectionName = Literal[
    "auto",
    "layer",
    "global",
    "overall",
    "measured",
    "angular",
    "unnormalized",
    "none",
    "shuffled",
    "layerwise",
]
Correction = (
    Literal["auto", "layer", "global", "overall", "measured", "angular", "unnormalized", "none"]
    | Callable[[so.Topology], Mapping[str, Tensor]]
)


def correction(name: CorrectionName) -> Correction:
    """What `SparseOpt` takes for this name: the library's own corrections by name, the controls as functions."""
    if name == "shuffled":
        return shuffled
    if name == "layerwise":
        return layerwise
    return name


def shuffled(topology: so.Topology) -> dict[str, Tensor]:
    """The factors of "layer", permuted among the neurons of each layer.

    Every layer keeps its factors and their spread, but no neuron has its own. The permutation is the same
    throughout a run, decided by the topology's seed.
    """
    factors = so.skew_factors(topology, "layer")
    return {name: values[_permutation(topology, name).to(values.device)] for name, values in factors.items()}


def layerwise(topology: so.Topology) -> dict[str, Tensor]:
    """One factor a layer, sqrt((1 - s_layer) / (1 - s_avg)), without a part of its own for any neuron.

    The factors of "global" are sqrt((1 - s_i) / (1 - s_avg)), so the mean of their squares over a layer is
    (1 - s_layer) / (1 - s_avg).
    """
    factors = so.skew_factors(topology, "global")
    return {name: values.square().mean().sqrt().expand_as(values) for name, values in factors.items()}


def _permutation(topology: so.Topology, name: str) -> Tensor:
    draw = so.topology.generator(topology.seed, "shuffled", name)
    return torch.randperm(topology.layers[name].neurons, generator=draw)
