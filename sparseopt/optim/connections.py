"""The masks after an update: what the method decides for every layer that has a gradient."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sparseopt.methods import Method
from sparseopt.methods.parts import in_parts, next_index
from sparseopt.methods.view import Count, LayerView, Memory
from sparseopt.optim.gradients import must_be_there, scale_since
from sparseopt.topology import Topology, generator
from sparseopt.topology.dense_grads import is_finite, ranks, row_blocks
from sparseopt.topology.layers import Layer
from sparseopt.topology.norms import keep_slices
from sparseopt.topology.scatter import as_index
from sparseopt.topology.sharding import whole
from sparseopt.topology.storage import Packed, Storage


class NotFinite(Exception):
    """A gradient that would decide is not finite."""


@torch.no_grad()
def next_masks(
    topology: Topology,
    method: Method,
    step: int,
    factors: Mapping[str, Tensor],
    seen: Mapping[str, Tensor],
    memory: Memory,
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The new masks, whole, and the numbers of active weights that the method asked for, by layer. Raises `NotFinite`.

    A layer without a gradient (frozen, or not reached by the loss) is left out, unless it is not frozen and the method
    `moves_unreached`; before the first step (step 0) there are no gradients, and the layers are all. The gradients are those
    that are there, or were `seen`.
    """

    gradients = UpdateGradients(method if step else None, step, factors, seen)
    reached = {name for name, each in topology.storage.items() if gradients.reach(each)}
    layers = {
        name: each
        for name, each in topology.storage.items()
        if step == 0 or name in reached or (method.moves_unreached() and each.parameter.requires_grad)
    }
    if topology.kind() == "packed":
        new = {
            name: _next_index(topology, method, step, memory, gradients, storage)
            for name, storage in layers.items()
        }
        return new, {name: topology.active(name) for name in new}
    views = {
        name: view_of(topology, name, step, gradients.of(each) if name in reached else None, memory)
        for name, each in layers.items()
    }
    memory.shapes = {name: layer.shape for name, layer in topology.layers.items()}
    counts = method.counts(views, step, memory)
    new = {name: _choose(method, view, counts[name]) for name, view in views.items()}
    return new, {name: counts[name].active for name in new}


@dataclass(frozen=True)
class UpdateGradients:
    """The dense gradients of an update as the method reads them: finite, corrected if it asks for that, or not at all."""

    method: Method | None
    step: int
    factors: Mapping[str, Tensor]
    seen: Mapping[str, Tensor]

    def reach(self, storage: Storage) -> bool:
        """Has the loss reached this layer? A gradient that was set to zero, and to which nothing was added, says no."""
        there = self.seen.get(storage.layer.name, storage.parameter.grad)
        if there is None or self.method is None or not self.method.needs_dense_grad(self.step):
            return there is not None
        if isinstance(storage, Packed):
            return ranks() > 1 or bool(storage.grads.given(storage.layer.name)) or bool(there.any())
        return bool(whole(there).any())

    def of(self, storage: Storage) -> Tensor | None:
        """That of a layer, whole."""
        if self.method is None or not self.method.uses_gradient:
            return None
        name = storage.layer.name
        there = self.seen.get(name, storage.parameter.grad)
        enough = not self.method.needs_dense_grad(self.step)  # is the gradient of the active weights
        if name in self.seen and storage.kind == "dense":
            grad = whole(self.seen[name])
        else:  # a packed layer has it by rows, which all ranks would have to add up
            grad = None if enough and self.method.due(self.step) else storage.gradient()
        if grad is None and there is not None and enough:
            grad = storage.to_dense(there)
        elif grad is not None and there is not None and isinstance(storage, Packed):
            grad = grad * scale_since(storage, there, grad)
        return self._checked(storage.layer, must_be_there(grad, name, type(self.method).__name__))

    def in_blocks(self, storage: Packed) -> Iterator[Tensor] | None:
        """The same by blocks of rows: nothing of the layer's size is made."""
        if self.method is None or not self.method.uses_gradient:
            return None
        rows = must_be_there(storage.gradient_rows(), storage.layer.name, type(self.method).__name__)
        blocks = row_blocks(storage.layer.shape)
        return (self._checked(storage.layer, rows(block), block) for block in blocks)

    def _checked(self, layer: Layer, grad: Tensor, rows: slice = slice(None)) -> Tensor:
        if not is_finite(grad):
            raise NotFinite
        if self.method is not None and self.method.reads_corrected_grad() and layer.name in self.factors:
            grad = grad * layer.broadcast(self.factors[layer.name]).expand(layer.shape)[rows]
        return grad


def _next_index(
    topology: Topology,
    method: Method,
    step: int,
    memory: Memory,
    gradients: UpdateGradients,
    storage: Storage,
) -> Tensor:
    """The next mask of a packed layer, by index: what is dense, scores and gradients, exists for one layer at a time."""
    assert isinstance(storage, Packed)
    name, fraction = storage.layer.name, method.drop_fraction_at(step)
    if in_parts(method) and storage.layer.norm_dim is None:  # norms of slices need the whole layer
        grad, draw = gradients.in_blocks(storage), generator(topology.seed, step, name)
        values = storage.parameter.detach()
        new = next_index(method, storage.index, values, grad, storage.layer.size, fraction, draw)
        for _ in grad or ():  # all of it must be finite, also where nothing moves
            pass
        return new
    view = view_of(topology, name, step, gradients.of(storage), memory)
    return as_index(_choose(method, view, method.counts({name: view}, step, memory)[name]))


def _choose(method: Method, view: LayerView, count: Count) -> Tensor:
    if count.active == view.mask.numel():
        return torch.ones_like(view.mask)
    new = method.choose(view, count)
    if view.layer is None or view.layer.norm_dim is None:
        return new
    return keep_slices(new, view.mask, view.weight, view.layer)


def view_of(
    topology: Topology,
    name: str,
    step: int,
    grad: Tensor | None,
    memory: Memory,
    lr: float | Tensor = 0.0,
    purpose: str | None = None,
) -> LayerView:
    """A layer as a method sees it: whole, also where its parameter is sharded, so that ranks decide alike.

    `purpose`: what is drawn for it at this step has nothing to do with other draws.
    """
    key = (step, name) if purpose is None else (step, name, purpose)
    return LayerView(
        mask=whole(topology.masks[name]),
        weight=topology.weight(name),
        grad=grad,
        generator=generator(topology.seed, *key),
        layer=topology.layers[name],
        memory=memory.of(name),
        lr=lr,
    )
