"""How unevenly the last masks of a run feed the neurons of each layer.

The fan-in of a layer's neurons decides their skew factors (`sparseopt.topology.skew`). Masks are read from the metadata of the
final network, from the newest checkpoint, or from its small file. The zeros of the plain final network would not do:
a grown weight starts at zero, and stays there where its input never changes, as at the border of digits.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparseopt.kernels.frozen import file as packed
from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.catalogue import Run
from sparseopt.lab.runs.rundir import RunDir
from sparseopt.lab.show.words import layer_label
from sparseopt.topology.bits import unpack
from sparseopt.topology.skew import relative_scale

log = logging.getLogger(__name__)

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class LayerFanIn:
    """One layer: spread of fan-in and of the factors that follow from it, and fan-in / mean at the quartiles."""

    spread: float
    factor_spread: float
    quantiles: list[float]


def fan_in_by_layer(run: Run) -> dict[str, LayerFanIn]:
    """Every sparse layer of a run, in the order of the network; empty where there are no masks to read."""
    if run.config.method == "dense":
        return {}
    masks = last_masks(run)
    if not all(mask.dim() > 1 and mask.any() for mask in masks.values()):
        raise UserError(f"{run.path} has masks that are no layer's, or empty ones")
    return {
        layer_label(name, len(mask)): _measured(mask.flatten(1).sum(1).double())
        for name, mask in masks.items()
    }


def _measured(fan_in: Tensor) -> LayerFanIn:
    relative = fan_in / fan_in.mean()
    factors = relative_scale(fan_in, fan_in.mean())
    return LayerFanIn(
        spread=float(relative.std(correction=0)),
        factor_spread=float(factors.std(correction=0)),
        quantiles=relative.quantile(torch.tensor(QUANTILES, dtype=torch.float64)).tolist(),
    )


def last_densities(run: Run) -> Mapping[str, float]:
    """Of its last masks, or as they were archived; of a dense run, and of one whose masks cannot be read, there are none."""
    if run.config.method == "dense":
        return {}
    try:
        masks = last_masks(run)
    except UserError as reason:
        log.warning("%s: its densities are not known", reason)
        return run.densities
    return {name: float(mask.double().mean()) for name, mask in masks.items()} or run.densities


def last_masks(run: Run) -> dict[str, Tensor]:
    """From the final network's metadata, which is quick to read; of a run that goes on, from its checkpoint; else as exported."""
    folder = RunDir(run.path)
    if folder.model_file.exists():
        try:
            if masks := packed.stored_masks(folder.model_file):
                return masks
        except (ValueError, OSError) as error:
            raise UserError(f"{folder.model_file} cannot be read ({error})") from error
    state = folder.checkpoints.load(torch.device("cpu"))
    if state is not None:
        try:
            layers: Mapping[str, Mapping[str, Any]] = state["optimizer"]["sparseopt"]["topology"]["layers"]
            return {name: unpack(layer["mask"], tuple(layer["shape"])) for name, layer in layers.items()}
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise UserError(f"the checkpoint in {folder.path} holds no masks ({error!r:.80})") from error
    if not folder.packed_file.exists():
        return {}
    try:
        return packed.read(folder.packed_file).masks
    except (ValueError, OSError) as error:
        raise UserError(f"{folder.packed_file} cannot be read ({error}); export it again") from error
