"""What a method that is part of every step is shown of the gradients, and what it adds to them.

It sees them as the backward pass left them. Its own terms (a penalty, noise) are added in the end: like weight decay, they are
neither corrected nor clipped.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparseopt.methods import Method, WeightMethod
from sparseopt.methods.view import Memory
from sparseopt.optim.connections import view_of
from sparseopt.topology import Topology
from sparseopt.topology.sharding import local, part_like, whole


def reads_gradient(method: Method) -> bool:
    """Does a method read the gradient, at its updates or at every step?"""
    return method.uses_gradient or _watches(method)


def _watches(method: Method) -> bool:
    return isinstance(method, WeightMethod) and type(method).watch is not WeightMethod.watch


@torch.no_grad()
def show_gradients(
    method: WeightMethod, topology: Topology, step: int, memory: Memory, gradients: Mapping[str, Tensor]
) -> None:
    if not _watches(method):
        return
    for name, grad in gradients.items():
        method.watch(view_of(topology, name, step, whole(grad), memory), step)


@torch.no_grad()
def add_terms(
    method: WeightMethod,
    topology: Topology,
    step: int,
    memory: Memory,
    gradients: Mapping[str, Tensor],
    base: Optimizer,
    learning: Callable[[str], Tensor],
) -> None:
    """Add the method's terms to the gradients of the weights that learn."""
    if type(method).term is WeightMethod.term:
        return
    rates = learning_rates(base, (topology.parameters[name] for name in gradients))
    for (name, grad), lr in zip(gradients.items(), rates, strict=True):
        view = view_of(topology, name, step, None, memory, lr, purpose="term")
        term = method.term(view, step)
        if term is not None:
            part = part_like(term, topology.parameters[name])
            local(grad).add_(part.masked_fill(~learning(name), 0))


def learning_rates(base: Optimizer, parameters: Iterable[Tensor]) -> list[float | Tensor]:
    """The learning rate of the group that each parameter is in, a tensor where the optimizer has it as one; 0 without any."""
    rates = {id(p): group.get("lr", 0.0) for group in base.param_groups for p in group["params"]}
    return [rates[id(parameter)] for parameter in parameters]
