"""Whether training runs on the sparse kernels: the person's choice, or what a measurement says."""

import logging
from typing import Literal

from torch import nn

import sparseopt as so
from sparseopt.lab.data import Pipeline

Accelerate = Literal["auto", "on", "off"]


def put_on_kernels(choice: Accelerate, model: nn.Module, topology: so.Topology, data: Pipeline) -> None:
    """Let the model train on the kernels, or leave it as it is; what was decided and why is logged."""
    if choice == "off":
        return
    logging.getLogger(so.kernels.__name__).setLevel(logging.INFO)  # one asks for it to hear what came of it
    if choice == "on":
        so.accelerate(model, topology, break_even=0.0)
        return
    images, _ = next(iter(data.train_batches(0, 0)))
    so.kernels.accelerate_where_faster(model, topology, images)
