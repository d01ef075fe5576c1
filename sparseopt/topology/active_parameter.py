"""A parameter whose active values are kept apart from its dense memory until somebody looks at it.

The kernels and a packed step of the optimizer both work on the active values alone. Between them the dense memory need not
follow: writing the values there and reading them back would cost more than a step of a very sparse layer. To everybody else the
parameter is what it was: the same object with the same memory, which is complete before anything that torch is asked to do
with it happens. From then on the memory counts, and the values are read from it anew.

>>> import torch
>>> from sparseopt.topology.active import ActiveEntries, TorchCopies
>>> weight = torch.nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
>>> entries = ActiveEntries(weight.detach() != 0)
>>> adopt(weight, TorchCopies())
>>> weight.content.put(torch.tensor([3.0, 4.0]), entries)
>>> weight
Parameter containing:
tensor([[3., 0.],
        [0., 4.]], requires_grad=True)
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _rebuild_parameter
from torch.utils._pytree import tree_leaves

from sparseopt.topology.active import ActiveEntries, Copies, flat, hold_to_mask_
from sparseopt.topology.active_tensor import METADATA, ActiveTensor, is_shared

OF_A_LEAF = (
    "grad",
    "_backward_hooks",
    "_post_accumulate_grad_hooks",
    "_version",
    "_base",
    "is_cpu",
    "is_cuda",
)
# What does not show the values. A look costs the time of completing the memory, so what a training step asks for is here.
HARMLESS = METADATA | {
    getattr(getattr(Tensor, name), accessor)
    for name in (*OF_A_LEAF, "requires_grad")
    for accessor in ("__get__", "__set__", "__delete__")
    if hasattr(getattr(Tensor, name), accessor)
}
OWN_ALIASES = 1  # of the memory: `_dense`


class Memory:
    """The memory of a parameter, and its active values under a mask: one of them, or both, are up to date."""

    def __init__(self, parameter: Tensor, copies: Copies) -> None:
        self.copies = copies
        self._dense = parameter.detach()
        self._values: Tensor | None = None
        self._entries: ActiveEntries | None = None  # of the values
        self._ahead = False  # the values are newer than the memory
        self._held_to: ActiveEntries | None = None  # the memory is zero outside this mask

    def is_of(self, parameter: Tensor) -> bool:
        """Is this still the memory of the parameter?"""
        return self._dense.data_ptr() == parameter.data_ptr() and self._dense.shape == parameter.shape

    def is_like(self, parameter: Tensor) -> bool:
        kinds = ((each.dtype, each.device, each.shape, each.stride()) for each in (self._dense, parameter))
        return next(kinds) == next(kinds)

    def look(self) -> None:
        """Complete the memory. Whoever looks may write to it."""
        if self._ahead:
            assert self._values is not None
            assert self._entries is not None
            self.copies.scatter([self._values], [self._entries], [self._dense])
        self._values, self._ahead, self._held_to = None, False, None

    def values(self, entries: ActiveEntries) -> Tensor:
        """The active values, to read."""
        if self._values is not None and self._entries is entries:
            return self._values
        self.look()
        values = self.copies.gather([self._dense], [entries], [None])[0][0]
        if not values.is_inference() and not is_shared(self._dense, OWN_ALIASES):
            self._values, self._entries = values, entries
        return values

    def take(self, entries: ActiveEntries) -> Tensor:
        """The active values, to change and to `put` back. The other entries are exactly zero."""
        if self._held_to is not entries:
            self.look()
            hold_to_mask_(self._dense, entries.mask)
        values = self.values(entries)
        if self._values is values:  # nobody else has the memory
            self._held_to, self._ahead = entries, True
        return values

    def holds(self, values: Tensor, entries: ActiveEntries) -> bool:
        """Are these very values in force, and zero elsewhere?"""
        return self._values is values and self._held_to is entries

    def put(self, values: Tensor, entries: ActiveEntries) -> None:
        """Hold these active values, and zero elsewhere. Memory that somebody has is kept true."""
        values = flat(values)
        if is_shared(self._dense, OWN_ALIASES):
            self.copies.scatter([values], [entries], [self._dense])
            self._values, self._ahead, self._held_to = None, False, None
        else:
            self._values, self._entries, self._ahead, self._held_to = values, entries, True, entries
            torch.autograd.graph.increment_version(self._dense)


class ActiveParameter(nn.Parameter):
    content: Memory

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        seen = [each for each in tree_leaves((args, kwargs)) if isinstance(each, ActiveParameter)]
        for each in seen:
            each.content.look()
        if not all(issubclass(each, (ActiveParameter, ActiveTensor)) or each in PLAIN for each in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            moved = [each for each in seen if not each.content.is_of(each)]
        for each in moved:
            follow(each)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        return memo[id(self)]

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return repr(nn.Parameter(self.detach(), self.requires_grad))

    def __reduce_ex__(self, protocol: Any) -> Any:
        hooks: OrderedDict[int, Any] = OrderedDict()
        return _rebuild_parameter, (self.detach(), self.requires_grad, hooks)


PLAIN = (Tensor, nn.Parameter)


def adopt(parameter: nn.Parameter, copies: Copies) -> None:
    """Make an ordinary, contiguous parameter one whose active values may be kept apart."""
    memory = Memory(parameter, copies)
    parameter.__class__ = ActiveParameter
    parameter.content = memory  # pyright: ignore[reportAttributeAccessIssue]


def release(parameter: Tensor) -> None:
    """Make it an ordinary parameter again."""
    if isinstance(parameter, ActiveParameter):
        parameter.content.look()
        del parameter.content
        parameter.__class__ = nn.Parameter  # pyright: ignore[reportAttributeAccessIssue]


def follow(parameter: Tensor) -> None:
    """Other memory has become the parameter's. If that is of another kind, it is an ordinary parameter again."""
    if isinstance(parameter, ActiveParameter):
        content = parameter.content
        release(parameter)
        if content.is_like(parameter):
            adopt(parameter, content.copies)
