"""The skew correction: one factor a neuron, sqrt(1 - s_i) / sqrt(1 - s_avg), to multiply the gradient of its weights with.

BatchNorm enlarges the gradient of a neuron of sparsity s_i by (1 - s_i)^(-1/2). D = diag(sqrt(1 - s_i)) undoes that, and
1 / sqrt(1 - s_avg) keeps the size of the whole. Where all neurons have the same fan-in the factors are exactly 1.

Behind LayerNorm, RMSNorm or no norm at all there is no such skew to undo, and the same factors would make one. So the
correction that is in force by default, "auto", is "layer" where a layer's output goes into BatchNorm
(`sparseopt.topology.start.normed` says how that is found), and none elsewhere. And it is none for methods that read gradients to
move connections, such as RigL: with them a network has trained worse corrected than plain (docs/does-it-help.md).

A correction is any function from a topology to such factors; `SparseOpt` asks it again after every change of the masks. A
researcher's own is a function as well:

>>> import torch, sparseopt as so
>>> def squared(topology):
...     return {name: f**2 for name, f in so.skew_factors(topology, "layer").items()}
>>> model = torch.nn.Linear(8, 4)
>>> topology = so.sparsify(model, 0.5)
>>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
>>> optimizer = so.SparseOpt(sgd, topology, so.Static(), correction=squared)
"""

import logging
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from sparseopt.methods import Method
from sparseopt.optim.measured import measured_factors
from sparseopt.topology import Topology
from sparseopt.topology.skew import relative_scale

log = logging.getLogger(__name__)

Mode = Literal["layer", "global", "overall", "unnormalized", "measured", "angular"]
Correction = Mode | Literal["auto", "none"] | Callable[[Topology], Mapping[str, Tensor]]
MODES = ("layer", "global", "overall", "unnormalized", "measured", "angular")


def skew_factors(topology: Topology, mode: Mode = "layer") -> dict[str, Tensor]:
    """The factor of each neuron of each layer, in float64.

    s_avg has three readings, since the paper says "the average sparsity across neurons": "layer" takes the mean over the
    neurons of the layer (as the authors' project page has it), "global" over the neurons of the network, "overall" the
    share of zeros among all sparsifiable weights, which weights a neuron by its inputs: with ERK the small, dense layers
    then take larger steps, the large ones smaller. "unnormalized" is D alone. Neurons without inputs get 0.

    "measured" and "angular" go by the norms of the weights as they are now (see `sparseopt.optim.measured`).

    Args:
        topology: of the network.
        mode: whose mean the factors are relative to: see `SparseOpt`'s correction.
    """
    if mode == "measured" or mode == "angular":
        return {name: values.double() for name, values in measured_factors(topology, mode).items()}
    if mode == "layer":  # whole numbers, and no mean, which CUDA rounds: equal fan-in gives exactly 1
        fan_ins = {name: topology.fan_in(name) for name in topology.layers}
        return {name: relative_scale(n * n.numel(), n.sum()) for name, n in fan_ins.items()}
    average = average_density(topology, mode)
    return {name: relative_scale(_density(topology, name), average[name]) for name in topology.layers}


def average_density(topology: Topology, mode: Mode) -> dict[str, Tensor]:
    """1 - s_avg for each layer: the number under the root that the factors of fan-in are normalised with."""
    density = {name: _density(topology, name) for name in topology.layers}
    if mode == "layer":
        return {name: values.mean() for name, values in density.items()}
    if mode == "global":
        neurons = sum(values.numel() for values in density.values())
        total = torch.stack([values.sum().cpu() for values in density.values()]).sum()
        return {name: (total / neurons).to(values.device) for name, values in density.items()}
    if mode == "overall":
        share = topology.active() / topology.size()
        return {name: values.new_tensor(share) for name, values in density.items()}
    if mode == "unnormalized":
        return {name: values.new_ones(()) for name, values in density.items()}
    raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")


def _density(topology: Topology, name: str) -> Tensor:
    """1 - s_i of each neuron of a layer."""
    return topology.fan_in(name).double() / topology.layers[name].inputs


def correction_factors(topology: Topology, correction: Correction) -> dict[str, Tensor]:
    """The factors a correction asks for; empty for "none", checked where they come from the user's own function."""
    if callable(correction):
        return _checked(correction(topology), topology)
    if correction == "none":
        return {}
    if correction == "auto":
        return {name: x for name, x in skew_factors(topology, "layer").items() if name in topology.normed}
    return skew_factors(topology, correction)


def in_force(correction: Correction, method: Method) -> Correction:
    """What is asked for, with this method: "auto" leaves those that go by gradients plain."""
    return "none" if correction == "auto" and left_plain(method) else correction


def left_plain(method: Method) -> bool:
    """Whether "auto" corrects nothing with this method. One that reads corrected gradients has asked for them."""
    return method.uses_gradient and not method.reads_corrected_grad()


def check_correction(correction: Correction, topology: Topology) -> None:
    if callable(correction):
        _checked(correction(topology), topology)
    elif correction not in ("auto", *MODES, "none"):
        raise ValueError(
            f"correction must be one of auto, {', '.join(MODES)}, none, or a function topology -> {{name: factors}}, "
            f"got {correction!r}"
        )


def _checked(factors: Mapping[str, Tensor], topology: Topology) -> dict[str, Tensor]:
    unknown = sorted(set(factors) - set(topology.layers))
    if unknown:
        raise ValueError(f"the correction names {unknown}, which are not among {sorted(topology.layers)}")
    for name, values in factors.items():
        expected = (topology.layers[name].neurons,)
        if tuple(values.shape) != expected:
            raise ValueError(
                f"the correction of {name!r} has shape {tuple(values.shape)}; one factor a neuron is {expected}"
            )
    return dict(factors)
