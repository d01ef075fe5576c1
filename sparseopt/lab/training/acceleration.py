"""Whether training runs on the sparse kernels: the person's choice, or what a measurement says."""

import logging
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

import sparseopt as so
from sparseopt.lab.data import Pipeline
from sparseopt.lab.errors import UserError
from sparseopt.lab.system.ranks import Ranks
from sparseopt.optim.fit import why_not_packed

Accelerate = Literal["auto", "on", "bfloat16", "off"]  # bfloat16: on, and activations are kept as that
Storage = Literal["dense", "packed"]
BEGINS = 0.01  # less sparsity than it is to have, with which a network counts as one that becomes sparse


def choose_storage(asked: Storage | None, accelerate: Accelerate, method: so.Method) -> Storage:
    """What was asked for; else packed where all sparse layers are to run on the kernels, and the method can work on it."""
    reason = why_not_packed(method)
    if asked == "packed" and reason is not None:
        raise UserError(f"{reason}: ask for no packed storage, or choose another --method")
    return asked or ("packed" if accelerate in ("on", "bfloat16") and reason is None else "dense")


def put_on_kernels(
    choice: Accelerate,
    model: nn.Module,
    topology: so.Topology,
    data: Pipeline,
    ranks: Ranks,
    sparsity: float,
    decided: Sequence[str] | None = None,
) -> None:
    """Let the model train on the kernels, or leave it as it is; what was decided and why is logged.

    `decided` are the layers that "auto" chose when the run began: another measurement might choose others, and other bits.
    Of a network that is to come to a larger `sparsity` than it begins with, the first step says nothing: "auto" goes by zeros.
    """
    if choice == "off":
        return
    logging.getLogger(so.kernels.__name__).setLevel(logging.INFO)  # one asks for it to hear what came of it
    if choice in ("on", "bfloat16"):
        kept = torch.bfloat16 if choice == "bfloat16" else torch.float32
        so.accelerate(model, topology, break_even=0.0, activations=kept)
        return
    if topology.sparsity() < sparsity - BEGINS and (decided is None or decided):
        so.accelerate(model, topology)
        return
    if decided is None:
        images, _ = next(iter(data.train_batches(0, 0)))
        decided = ranks.first_does(lambda: so.kernels.faster_layers(model, topology, images))
    so.accelerate(model, topology, layers=decided)
