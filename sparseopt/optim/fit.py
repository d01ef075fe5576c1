"""What goes together: an optimizer that has the parameters, a method that can start, and both with packed storage.

Rows of active values cannot be trained by methods that change their number, nor by optimizers that need matrices.
"""

import logging
import weakref
from collections.abc import Mapping
from math import ceil

import torch
from torch.optim import Optimizer

from sparseopt.methods import ACDC, GMP, NM, AnnealedTopK, Method, SRigL, Static, WeightMethod
from sparseopt.optim.tried import needs_matrices
from sparseopt.optim.wrapper import innermost
from sparseopt.topology import Topology
from sparseopt.topology.sharding import is_sharded

log = logging.getLogger(__name__)


_OWNERS: weakref.WeakKeyDictionary[Optimizer, weakref.ref[object]] = weakref.WeakKeyDictionary()


def check_free(base: Optimizer) -> None:
    """Raise ValueError if another SparseOpt, which is alive, moves the weights of this optimizer."""
    inside = innermost(base)
    before = _OWNERS.get(inside)
    if before is not None and before() is not None:
        raise ValueError(
            f"this {type(inside).__name__} is inside another SparseOpt already, and would move its weights twice a step; several "
            "networks under one optimizer have one topology: sparsify(nn.ModuleList([first, second]), ...)"
        )


def claim_base(base: Optimizer, owner: object) -> None:
    _OWNERS[innermost(base)] = weakref.ref(owner)


def check_method(method: Method, base: Optimizer, topology: Topology) -> None:
    """Raise if the method cannot move this topology, and log if it never will."""
    if not isinstance(method, Method):
        raise TypeError(f"method must be Static(), SET(...), RigL(...) or another Method, got {method!r}")
    check_start(method, topology)
    check_masks(method, topology)
    check_fit_for_rows(base, topology, method)
    if method.drop_fraction > 0 and method.every >= method.end and not method.changes_counts():
        log.warning(
            "%s never moves a connection: every=%d, but its updates end before step %d; lower every, or train longer",
            *(type(method).__name__, method.every, ceil(method.end)),
        )


def check_follows(method: Method, before: Method) -> None:
    """Raise ValueError if one method cannot take over from another in the middle of a training."""
    for each in (before, method):
        if isinstance(each, WeightMethod) or each.due(0):
            raise ValueError(
                f"{type(each).__name__} begins with masks or weights of its own, so it does not take turns with others; make a "
                "new SparseOpt, with a model and a topology that no other one has: "
                "sparsify(copy.deepcopy(model), masks=dict(topology.masks))"
            )


def check_start(method: Method, topology: Topology) -> None:
    start = method.starts_at()
    if start is not None and abs((1 - start) * topology.size() - topology.active()) > len(topology.layers):
        raise ValueError(
            f"{type(method).__name__} begins at sparsity {start:g}, and the topology has {topology.sparsity():.4g}: give it "
            f"what sparsify(model, {start:g}) returns; the sparsity to reach is the method's own, sparsity=..."
        )


def check_masks(method: Method, topology: Topology) -> None:
    """Raise ValueError if the masks that the method makes cannot be had from this topology."""
    ends = method.final_counts({name: layer.shape for name, layer in topology.layers.items()})
    _check_least(method, topology, ends)
    if isinstance(method, GMP):
        short = [name for name, count in ends.items() if topology.active(name) < count]
        if short:
            raise ValueError(
                f"{type(method).__name__} only prunes, and {short[0]!r} begins with {topology.active(short[0])} active "
                f"weights, where distribution={method.distribution!r} asks for {ends[short[0]]} at the end: give sparsify "
                f"and {type(method).__name__} the same distribution"
            )
    normed = [name for name, layer in topology.layers.items() if layer.norm_dim is not None]
    if isinstance(method, SRigL | NM) and normed:
        raise ValueError(
            f"{type(method).__name__} decides the fan-in of every neuron, and {normed[0]!r} is under weight_norm, which needs a "
            "weight in every slice: leave it out with sparsify(exclude=...), or use RigL"
        )


def _check_least(method: Method, topology: Topology, ends: Mapping[str, int]) -> None:
    """Refuse what would leave a layer without a weight, or weight_norm without one in each of its slices."""
    least = {name: layer.least for name, layer in topology.layers.items()}
    kind = type(method).__name__
    for name, count in ends.items():
        if count < least[name]:
            raise ValueError(
                f"{name!r} is under weight_norm, which divides by the norms of its {least[name]} slices, and {kind} would bring "
                f"it to {count} active weights of {topology.size(name)}, fewer than one a slice: give the method a lower "
                f"sparsity or another distribution, or leave it dense with sparsify(exclude={name!r})"
            )
    needed = sum(least.values())
    if isinstance(method, GMP | ACDC | AnnealedTopK):
        asked = round((1 - method.sparsity) * topology.size())
        if asked < needed:
            raise ValueError(
                f"{kind} with sparsity={method.sparsity:g} leaves {asked} active weights, and the layers need {needed}: one "
                f"each, and under weight_norm one for each norm ({max(least, key=lambda name: least[name])!r} needs the most); "
                "lower the sparsity, or leave layers dense with sparsify(exclude=...)"
            )


def check_parameters(base: Optimizer, topology: Topology) -> None:
    held = {id(parameter): parameter for group in base.param_groups for parameter in group["params"]}
    missing = [name for name, parameter in topology.parameters.items() if id(parameter) not in held]
    if missing:
        remedy = "give them to the optimizer, or leave them out with sparsify(exclude=...)"
        if any(map(is_sharded, held.values())):
            remedy = (
                "FSDP2 puts others in their place, so call fully_shard before sparsify, with storage='dense'"
            )
        elif len(missing) == len(topology.parameters):
            raise ValueError(
                "the optimizer has none of the topology's parameters: it is of another model, or the model was copied after "
                "sparsify"
            )
        raise ValueError(
            f"the optimizer lacks {len(missing)} of the topology's {len(topology.parameters)} parameters: "
            f"{', '.join(missing[:5])}; {remedy}"
        )


def check_fit_for_rows(base: Optimizer, topology: Topology, method: Method) -> None:
    """Raise ValueError if layers are packed and the method or the optimizer cannot work on that."""
    if topology.kind() != "packed":
        return
    reason = why_not_packed(method)
    if reason is not None:
        raise ValueError(f"{reason}: use sparsify(..., storage='dense') with it")
    base = innermost(base)
    packed = {id(parameter) for parameter in topology.parameters.values()}
    for group in base.param_groups:
        if any(id(each) in packed for each in group["params"]) and needs_matrices(type(base), group):
            raise ValueError(
                f"{type(base).__name__} works on weight matrices, and storage='packed' holds rows of active values: "
                "use sparsify(..., storage='dense') with it, or an optimizer that moves each weight by itself"
            )


def why_not_packed(method: Method) -> str | None:
    """What a method does to weights that packed storage does not hold; None if it leaves these alone."""
    if method.changes_counts():
        what = "changes how many weights are active"
    elif isinstance(method, WeightMethod):
        what = "works on inactive weights at every step"
    else:
        return None
    return f"{type(method).__name__} {what}, and packed storage holds a fixed number of active ones"


def refuse_capture(topology: Topology, method: Method) -> None:
    """Raise RuntimeError if a CUDA graph is to repeat this step, of a method that does something else at others."""
    if isinstance(method, Static) or not next(iter(topology.storage.values())).parameter.is_cuda:
        return
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"a CUDA graph repeats what it has captured, and steps of {type(method).__name__} are not all alike: masks would "
            "never move; capture forward and backward pass, and leave optimizer.step() outside"
        )
