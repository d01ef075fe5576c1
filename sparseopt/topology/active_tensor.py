"""A dense tensor that is zero outside a mask, kept as its active values until somebody looks at it.

Gradients and optimizer state of a sparse layer are such tensors. Those who know them (the kernels, `SparseOpt`) hand the active
values on and never make the zeros. To everybody else it is a tensor like any other: whatever torch is asked to do with it, it
does with the dense tensor, which is made at that moment and is what counts from then on.

>>> import torch
>>> from sparseopt.topology.active import ActiveEntries, flat
>>> entries = ActiveEntries(torch.eye(2, dtype=torch.bool))
>>> tensor = ActiveTensor(torch.tensor([1.0, 2.0]), entries, torch.Size([2, 2]))
>>> tensor.norm() ** 2
tensor(5.)
>>> tensor[0, 1] = 7
>>> tensor
tensor([[1., 7.],
        [0., 2.]])
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from sparseopt.topology.active import ActiveEntries, flat

GETTERS = (
    "shape",
    "dtype",
    "device",
    "layout",
    "ndim",
    "itemsize",
    "is_sparse",
    "requires_grad",
    "is_leaf",
    "grad_fn",
)
METHODS = ("size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex")
METADATA = frozenset(
    [getattr(Tensor, name).__get__ for name in GETTERS] + [getattr(Tensor, name) for name in METHODS]
)
SET_DATA: Any = getattr(Tensor, "data").__set__  # noqa: B009, the descriptor itself, which type checkers take for a tensor
OWN_REFERENCES = 2  # to the memory of a tensor nobody else refers to: the tensor's, and that of who asks


class Content:
    """What an `ActiveTensor` and its aliases have in common: active values, or the dense tensor once it was looked at."""

    def __init__(self, values: Tensor, entries: ActiveEntries, shape: torch.Size) -> None:
        self.shape = shape
        self._packed: tuple[Tensor, ActiveEntries] | None = (flat(values), entries)
        self._dense: Tensor | None = None

    def look(self) -> Tensor:
        """The dense tensor: an alias, by which one can tell later whether anybody still has it."""
        if self._dense is None:
            self._dense = self._unpacked()
            self._packed = None
        return self._dense.detach()

    def take(self, entries: ActiveEntries) -> Tensor:
        """The active values, not copied if nobody has looked at the tensor. Who changes them has to `put` them back."""
        if self._packed is not None and self._packed[1] is entries:
            return self._packed[0]
        return self.look().view(-1)[entries.index]

    def holds(self, values: Tensor, entries: ActiveEntries) -> bool:
        """Are these very values what it holds?"""
        return self._packed is not None and self._packed[0] is values and self._packed[1] is entries

    def put(self, values: Tensor, entries: ActiveEntries) -> None:
        """Hold these active values, and zero elsewhere. Dense memory that somebody has is kept true as well."""
        if self._dense is not None and is_shared(self._dense):
            self._dense.zero_().view(-1)[entries.index] = flat(values)
        else:
            self._packed, self._dense = (flat(values), entries), None

    def become(self, dense: Tensor) -> None:
        """Let another dense tensor take the place of this one."""
        self._packed, self._dense = None, dense.detach()

    def add(self, other: "Content") -> bool:
        """Add another tensor of the same active entries in place, if both are packed."""
        if self._packed is None or other._packed is None or self._packed[1] is not other._packed[1]:
            return False
        self._packed[0].add_(other._packed[0])
        return True

    def _unpacked(self) -> Tensor:
        assert self._packed is not None
        values, entries = self._packed
        dense = torch.zeros(self.shape, dtype=values.dtype, device=values.device)
        dense.view(-1)[entries.index] = values
        return dense


class ActiveTensor(Tensor):
    content: Content

    @staticmethod
    def __new__(cls, values: Tensor, entries: ActiveEntries, shape: torch.Size) -> "ActiveTensor":
        return _wrap(cls, Content(values, entries, shape), values)

    def __init__(self, *_: Any) -> None:
        pass

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if func == SET_DATA:
            return args[0].content.become(_look(args[1]))
        return func(*tree_map(_look, args), **tree_map(_look, kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch does on its own account: autograd stores a gradient, or adds to it."""
        if func is torch.ops.aten.detach.default:
            return _wrap(cls, args[0].content, args[0])
        active = all(isinstance(each, cls) for each in args) and not kwargs
        if func is torch.ops.aten.add_.Tensor and active and args[0].content.add(args[1].content):
            return args[0]
        return func(*tree_map(_look, args), **tree_map(_look, kwargs or {}))


def _wrap(cls: Any, content: Content, like: Tensor) -> Any:
    wrapped = Tensor._make_wrapper_subclass(cls, content.shape, dtype=like.dtype, device=like.device)
    wrapped.content = content
    return wrapped


def _look(value: Any) -> Any:
    return value.content.look() if isinstance(value, ActiveTensor) else value


def is_shared(tensor: Tensor, known: int = 0) -> bool:
    """Does anybody refer to the memory of this tensor, besides a number of known aliases? Another process might."""
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) > OWN_REFERENCES + known or storage.is_shared()
