"""The fan-in law along training: a heterogeneous layer trained with SET, measured at chosen steps."""

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

import sparseopt as so
from sparseopt.analysis.fan_in_law import angular_rate, neuron_scale, power_law
from sparseopt.analysis.twins import TwoLayers
from sparseopt.lab.analyses.analysis import Track
from sparseopt.lab.analyses.bn_ratio import TwinSettings, twin
from sparseopt.lab.analyses.inputs import batches, digits
from sparseopt.lab.data import TensorPipeline
from sparseopt.topology import generator
from sparseopt.topology.start.masks import mask_with_fan_in

Correction = Literal["none", "layer"]

LAYER = "first.weight"
BATCH = 128
EVERY = 25  # steps between mask updates: several of them in the first hundred steps
PROBE = 1000  # images that the gradients are measured on


def measure_training(
    settings: TwinSettings, fan_in: Tensor, steps: tuple[int, ...], seeds: int, track: Track
) -> dict[str, Any]:
    """Slopes of the angular rate at the chosen steps, trained with and without the correction."""
    corrections: tuple[Correction, ...] = ("none", "layer")
    runs: dict[str, list[list[dict[str, float]]]] = {correction: [] for correction in corrections}
    for offset, correction in track(list(itertools.product(range(seeds), corrections)), "along training"):
        runs[correction].append(
            list(_train(settings, fan_in, sorted(steps), settings.seed + offset, correction))
        )
    return {"steps": sorted(steps)} | {
        correction: {key: [[point[key] for point in run] for run in by_seed] for key in by_seed[0][0]}
        for correction, by_seed in runs.items()
    }


def _train(
    settings: TwinSettings, fan_in: Tensor, steps: list[int], seed: int, correction: Correction
) -> Iterator[dict[str, float]]:
    """Train to the last of the steps, and measure before each of them is taken."""
    data = TensorPipeline(
        digits(settings.data_dir), BATCH, seed=seed, augment=False, device=torch.device("cpu")
    )
    probe = batches("mnist", settings.data_dir, 1, PROBE, seed)
    model = twin(settings, "batch", seed, probe.images.shape[-1])
    mask = mask_with_fan_in(model.layer, fan_in, generator(seed, "mask"))
    topology = so.sparsify(model, None, masks={LAYER: mask}, include=LAYER, seed=seed)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    optimizer = so.SparseOpt(sgd, topology, so.SET(max(steps[-1], 1), every=EVERY), correction=correction)
    epochs = (data.train_batches(epoch) for epoch in itertools.count())
    for step, (images, labels) in enumerate(itertools.chain.from_iterable(epochs)):
        if step in steps:
            yield _slopes(model, topology, probe.images[0], probe.labels[0])
        if step == steps[-1]:
            return
        optimizer.zero_grad()
        F.cross_entropy(model(images.flatten(1)), labels).backward()
        optimizer.step()


def _slopes(model: TwoLayers, topology: so.Topology, images: Tensor, labels: Tensor) -> dict[str, float]:
    weight, mask = topology.parameters[LAYER], topology.masks[LAYER]
    (grad,) = torch.autograd.grad(F.cross_entropy(model(images), labels), weight)
    density = 1 - topology.neuron_sparsity(LAYER)
    factor = so.skew_factors(topology, "layer")[LAYER]
    rate = angular_rate(weight.detach(), grad, mask)
    return {
        "scale_slope": power_law(density, neuron_scale(grad, mask)).slope,
        "length_slope": power_law(density, weight.detach().norm(dim=1)).slope,
        "gain_slope": power_law(density, _gain(model)).slope,
        "rate_slope": power_law(density, rate).slope,
        "corrected_rate_slope": power_law(density, rate * factor).slope,
    }


def _gain(model: TwoLayers) -> Tensor:
    """|gamma_i| times the length of the outgoing weights: how loudly a neuron speaks to the loss, and hears from it."""
    gamma = model.get_parameter("norm.weight").detach()
    return gamma.abs() * model.second.weight.detach().norm(dim=0)
