"""The masks after an update: what the method decides for every layer that has a gradient."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparseopt.methods import Method
from sparseopt.methods.view import Count, LayerView, Memory
from sparseopt.topology import Topology, generator
from sparseopt.topology.sharding import whole


@torch.no_grad()
def next_masks(
    topology: Topology,
    method: Method,
    step: int,
    factors: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    memory: Memory,
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The new masks, whole, and the numbers of active weights that the method asked for, by layer.

    The layers are those of `grads`. Before the first step (step 0) there are no gradients, and the layers are all.
    """
    views: dict[str, LayerView] = {}
    for name in topology.parameters if step == 0 else grads:
        grad = whole(grads[name]) if method.uses_gradient and name in grads else None
        if grad is not None and method.reads_corrected_grad() and name in factors:
            grad = grad * topology.layers[name].broadcast(factors[name])
        views[name] = view_of(topology, name, step, grad, memory)
    counts = method.counts(views, step, memory)
    new = {name: _choose(method, view, counts[name]) for name, view in views.items()}
    return new, {name: counts[name].active for name in new}


def _choose(method: Method, view: LayerView, count: Count) -> Tensor:
    if count.active == view.mask.numel():
        return torch.ones_like(view.mask)
    return method.choose(view, count)


def view_of(
    topology: Topology, name: str, step: int, grad: Tensor | None, memory: Memory, lr: float = 0.0
) -> LayerView:
    """A layer as a method sees it: whole, also where its parameter is sharded, so that ranks decide alike."""
    return LayerView(
        mask=whole(topology.masks[name]),
        weight=whole(topology.parameters[name].detach()),
        grad=grad,
        generator=generator(topology.seed, step, name),
        layer=topology.layers[name],
        memory=memory.of(name),
        lr=lr,
    )


def learning_rates(base: Optimizer, parameters: Iterable[Tensor]) -> list[float]:
    """The learning rate of the group that each parameter is in; 0 where the optimizer has none."""
    rates = {id(p): group.get("lr", 0.0) for group in base.param_groups for p in group["params"]}
    return [float(rates[id(parameter)]) for parameter in parameters]
