"""First masks that the weights of a model decide: its zeros, its largest weights, or n of every m.

Random masks suit a network that has learned nothing. Of a trained one the largest weights are kept: in each layer as many as
the distribution gives it (`"magnitude"`), or the largest of the whole network (`"magnitude-global"`).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from sparseopt.topology.densities import Distribution, active_counts, check_sparsity
from sparseopt.topology.layers import Layer
from sparseopt.topology.nm import nm_mask, parse_nm
from sparseopt.topology.selection import globally_largest, take_highest

NAMES = (
    "None, 'nonzero', 'magnitude', 'magnitude-global', 'n:m' such as '2:4', or a mapping {name: bool tensor}"
)


def masks_by_weights(
    kind: str,
    layers: Mapping[str, Layer],
    weights: Mapping[str, Tensor],
    sparsity: float | None,
    distribution: Distribution,
) -> dict[str, Tensor]:
    """Masks that the weights decide, by the name of the rule."""
    if kind == "nonzero":
        return {name: weight != 0 for name, weight in weights.items()}
    if kind == "magnitude":
        shapes = {name: layer.shape for name, layer in layers.items()}
        counts = active_counts(shapes, sparsity, distribution)
        return {name: largest(weight, counts[name]) for name, weight in weights.items()}
    if kind == "magnitude-global":
        if sparsity is None:
            raise ValueError("masks='magnitude-global' needs a sparsity, such as 0.9 for 90% zeros")
        if isinstance(distribution, Mapping):
            raise ValueError(
                "masks='magnitude-global' asks for one sparsity of the whole network, and the weights decide the layers': a "
                "distribution by layer goes with masks='magnitude'"
            )
        check_sparsity(sparsity)
        counts = globally_largest(
            weights,
            round((1 - sparsity) * sum(layer.size for layer in layers.values())),
            {name: layer.least for name, layer in layers.items()},
        )
        return {name: largest(weight, counts[name]) for name, weight in weights.items()}
    nm = parse_nm(kind)
    if nm is None:
        raise ValueError(f"masks must be {NAMES}, got {kind!r}")
    return {name: nm_mask(weights[name].abs(), layer, *nm) for name, layer in layers.items()}


def largest(weight: Tensor, count: int) -> Tensor:
    """Mask of so many weights of largest magnitude."""
    return take_highest(weight.abs(), torch.ones_like(weight, dtype=torch.bool), count)
