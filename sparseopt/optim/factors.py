"""What the gradients of each layer are multiplied by while the masks stay: the correction, as the kind of clipping wants it.

Factors that follow from the masks are computed once for them; those that follow the norms of the weights, at every step. Under
the paper's clip the factors are applied in two parts, D before the norm is taken and 1 / sqrt(1 - s_avg) after the clip.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from sparseopt.optim.correction import Correction, average_density, correction_factors, skew_factors
from sparseopt.optim.gradients import SparseParameter
from sparseopt.optim.measured import POWERS, in_full_precision, measured_by_neuron
from sparseopt.topology import Topology


def fixed_factors(topology: Topology, correction: Correction) -> dict[str, Tensor]:
    """The factors that stay until the masks change; none where they follow the weights."""
    return factors_now(topology, correction) if _power(correction) is None else {}


def factors_now(topology: Topology, correction: Correction) -> dict[str, Tensor]:
    """The factors at this moment, {name: one a neuron}, on their parameter's device."""
    return _as_parameters(topology, correction_factors(topology, correction))


def sparse_parameters(
    topology: Topology,
    correction: Correction,
    clip: str,
    fixed: Mapping[str, Tensor],
    awake: Mapping[str, Tensor],
) -> list[SparseParameter]:
    """Every sparse parameter with its factors and its mask; `awake` has the masks of those that train inactive weights."""
    power, early, late = _power(correction), fixed, dict[str, Tensor]()
    if clip == "paper" and power is None and not callable(correction) and correction != "none":
        early, late = _apart(topology, correction)
    if awake:  # weights of neurons that the forward pass gives no input learn, too: there is no skew to go by
        early = {name: x.masked_fill(x == 0, 1) for name, x in early.items()}
    return [
        SparseParameter(
            storage,
            storage.spread(early[name]) if name in early else None,
            late.get(name),
            None if power is None else partial(measured_by_neuron, storage, power),
            early.get(name),
            awake[name].view(torch.uint8) if name in awake else storage.part,
        )
        for name, storage in topology.storage.items()
    ]


def _apart(topology: Topology, correction: Correction) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """D, and 1 / sqrt(1 - s_avg)."""
    corrected = topology.normed if correction == "auto" else topology.layers
    mode = "layer" if correction == "auto" else correction
    early = _as_parameters(topology, skew_factors(topology, "unnormalized"))
    late = {name: x.rsqrt() for name, x in average_density(topology, mode).items()}  # pyright: ignore[reportArgumentType]
    return {name: early[name] for name in corrected}, {name: late[name] for name in corrected}


def _power(correction: Correction) -> int | None:
    """Of the norms that the factors follow from step to step; None where they follow from the masks."""
    return POWERS.get(correction) if isinstance(correction, str) else None


def _as_parameters(topology: Topology, factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: in_full_precision(each, topology.parameters[name]) for name, each in factors.items()}
