"""Packed storage: a layer's parameter is the row of its active values, and `module.weight` is computed from it.

    module.parametrizations.weight.original   the parameter, (1, active), in the order of the dense weight's axes
    module.weight                             the dense tensor, differentiable; made anew at every use

This is torch's own `nn.utils.parametrize` with `Scatter` as the parametrization. `state_dict()` has the dense names and shapes,
and takes them: files go from one storage to the other. What a loaded weight has outside the mask is left out; it is kept aside
until the masks that go with it are loaded as well, or until the next step. A copy of the model has no topology to load masks
into, and takes those of the state.
"""

import copy
import functools
import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sparseopt.topology.dense_grads import DenseGradients

log = logging.getLogger(__name__)


class Scatter(nn.Module):
    """From the active values to the dense weight. `index`: their flat positions, ascending; changed in place by updates.

    The index is no buffer: those are sent from rank to rank by data parallelism, and written by `AveragedModel`.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], index: Tensor, grads: DenseGradients, values: nn.Parameter
    ) -> None:
        super().__init__()
        self.name, self.shape, self.index, self.grads = name, torch.Size(shape), index, grads
        # Positions and values that a load found outside the mask:
        self.beyond: tuple[Tensor, Tensor] | None = None
        self.owned = False  # does a topology move it? Nobody does that of a copy of the model alone
        self._written = values._version
        grads.values[name] = values
        self.copies: weakref.WeakSet[Scatter] = weakref.WeakSet()

    def forward(self, values: Tensor) -> Tensor:
        seen = self.grads.wanted and torch.is_grad_enabled() and values.requires_grad
        if not torch.compiler.is_compiling():
            self.tell_beyond()
        elif seen:
            return torch.ops.sparseopt_packed.to_dense(
                values, self.index, self.shape, self.grads.key, self.name
            )
        dense = to_dense(values, self.index, self.shape)
        if seen:
            dense.register_hook(lambda gradient: self.grads.give(self.name, gradient.__getitem__))
        return dense

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The active values of a dense weight; those of a tied weight are there already."""
        return to_packed(weight, self.index) if weight.shape == self.shape else weight

    @torch.no_grad()
    def put(self, index: Tensor, values: nn.Parameter) -> None:
        """Take other positions: values that are at both stay, also what was loaded beyond; all others are zero."""
        if not torch.equal(index, self.index):
            values.copy_(to_packed(self.loaded(values), index))
            self.index.copy_(index)
            self.beyond = None

    def loaded(self, values: Tensor) -> Tensor:
        """The dense weight with what a load found outside the mask."""
        weight = to_dense(values.detach(), self.index, self.shape)
        if self.beyond is not None:
            position, found = self.beyond
            weight.view(-1)[position.to(weight.device)] = found.to(weight)
        return weight

    def keep_beyond(self, weight: Tensor) -> None:
        """Keep aside what a dense weight has outside the mask."""
        outside = weight.detach().reshape(-1).index_fill(0, self.index.to(weight.device).long(), 0)
        found = outside.nonzero().view(-1)
        self.beyond = (found, outside[found]) if found.numel() else None
        self.grads.told_beyond = False

    def tell_beyond(self) -> None:
        """Log, once a topology and load, that a network is used without all that was loaded."""
        if self.beyond is not None and not self.grads.told_beyond:
            self.grads.told_beyond = True
            log.warning(
                "%r is used without %d weights that were loaded and lie outside its mask (and so may other layers be): load "
                "their masks as well (optimizer.load_state_dict or topology.load_state_dict), or load them before "
                "sparsify(model, masks='nonzero')",
                *(self.name, self.beyond[0].numel()),
            )

    def adopt(self, weight: Tensor) -> None:
        """Of a copy: take the positions of the active values of a state that is being loaded, if they are so few."""
        self._written += 1
        new, old = as_index(weight.to(self.index.device) != 0), self.index
        if new.numel() <= old.numel():
            unused = old[~torch.isin(old, new)][: old.numel() - new.numel()]
            self.index.copy_(torch.cat([new, unused]).sort().values)

    def check_copies(self) -> None:
        """Raise RuntimeError if a copy is about to be averaged with values of other positions."""
        for copied in self.copies:
            values = copied.grads.values.get(copied.name)
            # One that nobody writes to keeps its masks, and so does one that is trained by itself.
            written = values is not None and values._version > copied._written and values.grad is None
            if written and not copied.owned:
                raise RuntimeError(
                    f"the masks are about to move, and values are averaged into a copy of {self.name!r} by their place in the "
                    "row, which will mean another weight: make it with so.average(model, topology), or use storage='dense'"
                )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Scatter":
        values, grads = self.grads.values[self.name], copy.deepcopy(self.grads, memo)
        made = Scatter(self.name, self.shape, self.index.clone(), grads, memo.get(id(values), values))
        self.copies.add(made)
        return made

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return Scatter, (self.name, self.shape, self.index, self.grads, self.grads.values[self.name])

    def extra_repr(self) -> str:
        return f"{self.index.numel()} of {self.shape.numel()}"

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.index = fn(self.index)
        return self


def to_dense(values: Tensor, index: Tensor, shape: torch.Size) -> Tensor:
    """Zero but for the values at their places; autograd gathers on the way back."""
    return values.new_zeros(shape.numel()).index_put_((index,), values.view(-1)).view(shape)


def to_packed(dense: Tensor, index: Tensor) -> Tensor:
    """The entries of a dense tensor at the index, as a row."""
    return dense.reshape(-1)[index].view(1, -1)


def as_index(mask: Tensor) -> Tensor:
    """The flat positions of a mask's active weights, ascending, in the smallest type that holds them."""
    index = mask.reshape(-1).nonzero().view(-1)
    return index.int() if mask.numel() <= torch.iinfo(torch.int32).max else index


def pack(module: nn.Module, leaf: str, scatter: Scatter) -> None:
    """Let a module keep the active values of one of its weights alone."""
    register_operators()
    if not any(scatters(module)):  # of several weights, the hooks look after all
        order = (*module._parameters, *module._buffers)
        module.register_state_dict_post_hook(functools.partial(_to_dense_state, order))
        module.register_load_state_dict_pre_hook(_from_dense_state)
    parametrize.register_parametrization(module, leaf, scatter, unsafe=True)


def scatters(module: nn.Module) -> Iterator[tuple[str, Scatter]]:
    """The packed weights of one module, by the name the module knows them by."""
    lists = module._modules.get("parametrizations")
    for leaf in () if lists is None else lists._modules:
        scatter = scatter_of(module, leaf)
        if scatter is not None:
            yield leaf, scatter


def scatter_of(module: nn.Module, leaf: str) -> Scatter | None:
    """How a weight of a module is packed; None if it is dense. Kernels ask many times a step: by the shortest way."""
    lists = module._modules.get("parametrizations")
    steps = None if lists is None else lists._modules.get(leaf)
    first = None if steps is None else steps._modules.get("0")
    return first if isinstance(first, Scatter) else None


def scatter_values(module: nn.Module, leaf: str) -> nn.Parameter:
    """The parameter with the active values of a packed weight."""
    return module._modules["parametrizations"]._modules[leaf]._parameters["original"]  # pyright: ignore


def _to_dense_state(order: Sequence[str], module: nn.Module, state: Any, prefix: str, _: Any) -> None:
    """`order`: the names that the dense module has, in that order; what its children have comes after them."""
    for leaf, scatter in scatters(module):
        values = state.pop(f"{prefix}parametrizations.{leaf}.original")
        state[prefix + leaf] = to_dense(values, scatter.index, scatter.shape)
    own = [prefix + name for name in order if prefix + name in state]
    for name in (*own, *[each for each in state if each.startswith(prefix) and each not in own]):
        state.move_to_end(name)


def _from_dense_state(module: nn.Module, state: Any, prefix: str, *_: Any) -> None:
    for leaf, scatter in scatters(module):
        weight = state.get(prefix + leaf)
        if weight is None or weight.shape != scatter.shape:
            continue  # torch says what is missing, or does not fit
        del state[prefix + leaf]
        if not scatter.owned:
            scatter.adopt(weight)
        state[f"{prefix}parametrizations.{leaf}.original"] = to_packed(
            weight, scatter.index.to(weight.device)
        )
        scatter.keep_beyond(weight)


@functools.cache
def register_operators() -> None:
    """`to_dense` for the compiler, whose graphs take no hooks: operators that it does not look into give the gradient.

    What is given is a copy: the compiler reuses its memory.
    """

    @torch.library.custom_op("sparseopt_packed::to_packed", mutates_args=())
    def packed(gradient: Tensor, index: Tensor, key: int, name: str) -> Tensor:
        kept = gradient.clone()
        grads = DenseGradients.live.get(key)
        if grads is not None:
            grads.give(name, kept.__getitem__)
        return to_packed(gradient, index)

    # Written out: torch 2.6 does not read Sequence[int].
    schema = "(Tensor values, Tensor index, SymInt[] shape, SymInt key, str name) -> Tensor"

    @torch.library.custom_op("sparseopt_packed::to_dense", mutates_args=(), schema=schema)
    def dense(values: Tensor, index: Tensor, shape: Sequence[int], key: int, name: str) -> Tensor:
        return to_dense(values, index, torch.Size(shape))

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, index, _, ctx.key, ctx.name = inputs
        ctx.save_for_backward(index)

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return packed(gradient, *ctx.saved_tensors, ctx.key, ctx.name), None, None, None, None

    packed.register_fake(lambda gradient, index, key, name: gradient.new_empty((1, index.numel())))
    dense.register_fake(lambda values, index, shape, key, name: values.new_empty(shape))
    dense.register_autograd(backward, setup_context=setup_context)
