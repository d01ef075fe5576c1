"""Random masks with an exact number of active weights, and with a chosen spread of fan-in.

`random` places the active weights of a layer anywhere: the fan-in of its neurons then varies about as a binomial does.
`constant` gives every neuron of a layer the same fan-in (to within the one weight that divisibility may demand), where the
skew correction is the identity. `bimodal:R` gives one half of the neurons R times the fan-in of the other, the layer's
density unchanged: strong, known heterogeneity, for experiments on the skew.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from sparseopt.topology.densities import Distribution, active_counts
from sparseopt.topology.layers import Layer
from sparseopt.topology.randomness import generator, permutation, uniform
from sparseopt.topology.selection import take_lowest
from sparseopt.topology.start.find import Patterns, find_layers

MaskMaker = Callable[
    [Layer, int, torch.Generator], Tensor
]  # layer, number of active weights, source of the draws


def random_mask(layer: Layer, active: int, draw: torch.Generator) -> Tensor:
    """A mask with exactly `active` weights, all such masks equally likely."""
    score = uniform(draw, *layer.shape)
    return take_lowest(score, torch.ones_like(score, dtype=torch.bool), active)


def mask_with_fan_in(layer: Layer, fan_in: Tensor, draw: torch.Generator) -> Tensor:
    """A mask in which neuron i has exactly `fan_in[i]` incoming weights, at random places."""
    order = uniform(draw, layer.neurons, layer.inputs).argsort(dim=1, stable=True)
    rank = order.argsort(dim=1, stable=True)
    return layer.from_neurons(rank < fan_in.unsqueeze(1))


def constant_fan_in(layer: Layer, active: int, draw: torch.Generator) -> Tensor:
    """`active` weights spread evenly over the neurons; if they do not divide, random neurons get one more."""
    return mask_with_fan_in(layer, _spread(active, layer.neurons, draw), draw)


def bimodal_fan_in(ratio: float) -> MaskMaker:
    """Masks in which a random half of the neurons has `ratio` times the fan-in of the other half.

    The rich half is capped at the inputs there are, and the poor half keeps at least one input where the layer has the
    weights for it, so where a layer is nearly dense or nearly empty the ratio comes out smaller.
    """

    def mask(layer: Layer, active: int, draw: torch.Generator) -> Tensor:
        rich, poor = (layer.neurons + 1) // 2, layer.neurons // 2
        total = round(active * rich * ratio / (rich * ratio + poor))
        total = min(total, rich * layer.inputs, max(active - poor, rich))
        total = max(total, active - poor * layer.inputs)
        fan_in = torch.cat([_spread(total, rich, draw), _spread(active - total, poor, draw)])
        return mask_with_fan_in(layer, fan_in[permutation(draw, layer.neurons)], draw)

    return mask


def _spread(total: int, neurons: int, draw: torch.Generator) -> Tensor:
    """`total` inputs shared evenly by the neurons, the odd ones going to random neurons."""
    fan_in = torch.full((neurons,), total // max(neurons, 1), device=draw.device)
    fan_in[permutation(draw, neurons)[: total % max(neurons, 1)]] += 1
    return fan_in


def mask_maker(pattern: str) -> MaskMaker:
    """The function behind a pattern's name: "random", "constant" or "bimodal:R" with R >= 1.

    >>> mask_maker("bimodal:0.5")
    Traceback (most recent call last):
    ValueError: fan-in pattern must be 'random', 'constant' or 'bimodal:R' with a number R >= 1, got 'bimodal:0.5'
    """
    kind, _, number = pattern.partition(":")
    if pattern == "random":
        return random_mask
    if pattern == "constant":
        return constant_fan_in
    try:
        ratio = float(number)
    except ValueError:
        ratio = 0.0
    if kind != "bimodal" or not 1 <= ratio < float("inf"):
        raise ValueError(
            f"fan-in pattern must be 'random', 'constant' or 'bimodal:R' with a number R >= 1, got {pattern!r}"
        )
    return bimodal_fan_in(ratio)


def fan_in_masks(
    model: nn.Module,
    sparsity: float | None,
    pattern: str = "random",
    *,
    distribution: Distribution = "erk",
    include: Patterns = None,
    exclude: Patterns = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Masks for the model's layers with the given pattern of fan-in, to hand to `sparsify(model, sparsity, masks=...)`."""
    make = mask_maker(pattern)
    layers = {name: layer for name, (layer, _) in find_layers(model, include, exclude).items()}
    return random_masks(layers, sparsity, distribution, seed, make)


def random_masks(
    layers: Mapping[str, Layer],
    sparsity: float | None,
    distribution: Distribution,
    seed: int,
    make: MaskMaker = random_mask,
) -> dict[str, Tensor]:
    """A mask for each layer, with as many active weights as the distribution gives it."""
    counts = active_counts({name: layer.shape for name, layer in layers.items()}, sparsity, distribution)
    return {name: make(layer, counts[name], generator(seed, "mask", name)) for name, layer in layers.items()}
