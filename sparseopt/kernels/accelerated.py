"""`accelerate`: the same model, the same parameters, on sparse kernels (`acceleration.py` says how)."""

import logging
from collections.abc import Collection, Iterator
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from sparseopt.kernels.acceleration import (
    NOT_ACCELERATED,
    Acceleration,
    Accept,
    SparseForward,
    accelerated_layers,
    forwards,
    layers_of,
)
from sparseopt.kernels.conv.region import SparseRegion
from sparseopt.kernels.match.modules import weight_parameter
from sparseopt.kernels.match.pieces import BREAK_EVEN
from sparseopt.kernels.match.reasons import layers as layers_in
from sparseopt.kernels.match.tracing import Unsupported
from sparseopt.kernels.native.build import BuildError, operators
from sparseopt.topology import Topology

__all__ = ["Unsupported", "accelerate", "accelerated_layers", "restore", "summary"]

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=nn.Module)

REFUSED: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
"""Why layers are dense in models of which `accelerate` could put nothing on the kernels."""
FUSED = nn.TransformerEncoderLayer  # reads the weights of its layers itself where it can


def accelerate(
    model: Model,
    topology: Topology,
    *,
    break_even: float = BREAK_EVEN,
    layers: Collection[str] | None = None,
    activations: torch.dtype = torch.float32,
) -> Model:
    """Run the model's sparse layers on sparse CPU kernels, in training and in evaluation.

    The model is changed in place and returned: same class, parameters, buffers and `state_dict`; only its `forward`, or that of
    modules in it, goes another way. Where the kernels cannot help (no compiler, parameters on a GPU or in half precision) it is
    returned as it was, and the log says why. `summary` tells of every layer how it runs; `restore` undoes it; copies of the
    model are not accelerated.

    Layers that can run together stay together; while the share of zeros of a group is below `break_even` it runs densely. A
    network that GMP makes sparse by and by goes over to the kernels by itself, and under AC/DC leaves them in dense phases.
    With `layers`, names such as `accelerated_layers` gives, exactly the groups of these layers run on the kernels.

    Args:
        model: the network; it is changed in place and returned.
        topology: its topology, as `sparsify` returned it.
        break_even: share of zeros below which a group of layers runs densely.
        layers: names of the layers that run on the kernels, whatever their zeros; None: all, by `break_even`.
        activations: as what convolutions keep them between the forward and the backward pass: `torch.float32`, or
            `torch.bfloat16`, which takes half the memory. Arithmetic, statistics and gradients are float32 all the same.

    >>> import torch, sparseopt as so
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))
    >>> topology = so.sparsify(model, sparsity=0.95)
    >>> model = so.accelerate(model, topology)
    >>> model(torch.zeros(32, 784)).shape
    torch.Size([32, 10])
    """
    if activations not in (torch.float32, torch.bfloat16):
        raise ValueError(f"activations must be torch.float32 or torch.bfloat16, got {activations}")
    if layers is None:
        return install(model, topology, lambda _: True, activations=activations, break_even=break_even)
    if not layers:
        restore(model)
        return model
    return install(
        model, topology, lambda piece: set(layers_of(piece)) <= set(layers), activations=activations
    )


def summary(model: nn.Module) -> str:
    """A table a person can read: of every layer whether it runs on the sparse kernels, or densely and why.

    >>> import sparseopt as so
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10), nn.Sigmoid(), nn.Bilinear(10, 10, 2))
    >>> model = so.accelerate(model, so.sparsify(model, sparsity=0.9, include=["0.*", "2.*"]))
    >>> print(so.kernels.summary(model))
    0  Linear    sparse
    2  Linear    sparse
    4  Bilinear  dense: the kernels run Linear and Conv2d, not Bilinear
    """
    return _table(model, next((forward.shared for forward in forwards(model)), None))


def _table(model: nn.Module, shared: Acceleration | None) -> str:
    fused = {each for encoder in model.modules() if isinstance(encoder, FUSED) for each in encoder.children()}
    rows = [
        (
            name or type(model).__name__,
            type_before_parametrizations(module).__name__,
            _how(module, shared, fused=module in fused),
        )
        for name, module in layers_in(model)
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    return "\n".join(f"{name:{widths[0]}}  {kind:{widths[1]}}  {how}" for name, kind, how in rows)


def _how(module: nn.Module, shared: Acceleration | None, *, fused: bool) -> str:
    if shared is None:
        return f"dense: {REFUSED.get(module, NOT_ACCELERATED)}"
    reason = shared.why_dense(module)
    if reason is not None:
        return f"dense: {reason}"
    if fused:
        return (
            "sparse, but for evaluation without gradients, where torch's fused encoder layer computes densely"
        )
    kept, known = shared.activations, set(shared.topology.parameters.values())
    half = kept != torch.float32 and isinstance(module, nn.Conv2d)
    how = "sparse" if weight_parameter(module) in known else "on the kernels with the others, not sparse"
    return f"{how}, activations kept as {str(kept).removeprefix('torch.')}" if half else how


def restore(model: nn.Module) -> None:
    """Give the model, and all modules in it, back the `forward` of their classes."""
    for module in model.modules():
        if isinstance(module.__dict__.get("forward"), SparseForward):
            del module.forward
        REFUSED.pop(module, None)


def _regions(model: nn.Module) -> Iterator[SparseRegion]:
    for forward in forwards(model):
        for piece in forward.guarded():
            if isinstance(piece.sparse, SparseRegion):
                yield piece.sparse


def install(
    model: Model,
    topology: Topology,
    accept: Accept,
    *,
    activations: torch.dtype = torch.float32,
    break_even: float = 0.0,
) -> Model:
    """Let the pieces that are accepted run on the kernels; log what came of it."""
    restore(model)
    try:
        operators()
    except BuildError as reason:
        logger.warning("not accelerated: %s", reason)
        REFUSED.update((layer, str(reason)) for _, layer in layers_in(model))
        return model
    shared = Acceleration(model, topology, accept, activations, break_even)
    shared.enter(model)
    if not any(forwards(model)):
        logger.warning("not accelerated: %s", shared.why_nothing())
        REFUSED.update((layer, shared.why_dense(layer) or NOT_ACCELERATED) for _, layer in layers_in(model))
    elif activations != torch.float32 and not any(_regions(model)):
        restore(model)
        raise ValueError(
            f"activations={activations} is for convolutions that run on the kernels, and {type(model).__name__} has none: "
            "leave it out, and its linear layers keep float32"
        )
    elif not accelerated_layers(model):
        logger.warning("not accelerated for now: %s", shared.why_nothing())
    else:
        logger.info("accelerated %s", str(shared))  # whoever keeps the record keeps no model
    for line in _table(model, shared).splitlines():
        logger.info("  %s", line)
    return model
