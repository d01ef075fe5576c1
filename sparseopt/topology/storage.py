"""How the tensors of a sparse layer are kept: its weight, the gradient of it, and the state an optimizer has for it.

`Dense`: they have the layer's shape, with exact zeros outside a mask of bools. `Packed`: they are rows of the active entries
alone, (1, active), and an index says where these belong. Whoever works on such tensors asks the storage of the layer, and need
not know which it is. Numbers a neuron (`spread`), sums, masks and updates of the masks all have the same results in both.

A new mask (`new` below) is a tensor of bools of the layer's shape or, where that would be large, the flat positions of its
active weights in ascending order.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sparseopt.topology.bits import pack, pack_index, unpack
from sparseopt.topology.dense_grads import DenseGradients, Rows, average_over_ranks, join, ranks
from sparseopt.topology.layers import Layer
from sparseopt.topology.scatter import Scatter, as_index, to_dense, to_packed
from sparseopt.topology.sharding import gather, local, part_like, shard_like, whole

INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes


class Dense:
    """A plain parameter of the layer's shape. Masks are sharded as the parameter is; updates work on the parts."""

    kind = "dense"

    def __init__(self, layer: Layer, parameter: nn.Parameter, mask: Tensor, grads: DenseGradients) -> None:
        self.layer, self.parameter, self.grads = layer, parameter, grads
        self._put(mask)
        self.ever = pack(local(self.mask))
        self._dtype = parameter.dtype

    def _put(self, mask: Tensor) -> None:
        self.mask = shard_like(mask, self.parameter)
        self.grads.held.pop(self.parameter, None)

    @property
    def part(self) -> Tensor:
        """The mask of this rank, as bytes."""
        return local(self.mask).view(torch.uint8)

    def active(self) -> int:
        return int(whole(self.mask).sum())

    def to_dense(self, tensor: Tensor) -> Tensor:
        """A tensor of the storage's shape in that of the whole layer."""
        return whole(tensor)

    def gradient(self) -> Tensor | None:
        """The whole layer's gradient, inactive entries included; None if it lacks these."""
        grad = self.parameter.grad
        if grad is None or self.grads.masked or self.grads.is_spent(self.parameter):
            return None
        return whole(grad)

    def fan_in(self) -> Tensor:
        return self.layer.by_neuron(whole(self.mask)).sum(1)

    def bits(self) -> Tensor:
        """The mask at one bit a weight."""
        return pack(whole(self.mask))

    def ever_bits(self) -> Tensor:
        """What was active at some time, at one bit a weight."""
        return pack(gather(unpack(self.ever, local(self.mask).shape), self.parameter))

    def spread(self, per_neuron: Tensor) -> Tensor:
        """One number a neuron, in a shape that broadcasts against the layer's tensors."""
        return part_like(self.layer.broadcast(per_neuron), self.parameter)

    def apply(self) -> None:
        hold([(self.parameter.detach(), self.part)])

    def outside(self) -> Tensor:
        """How many weights outside the mask are not zero, on this rank."""
        return local(self.parameter.detach()).masked_fill(local(self.mask), 0).count_nonzero()

    def loaded(self) -> Tensor:
        """This rank's part of the weight as it was loaded, also outside the mask; not to be changed."""
        return local(self.parameter.detach())

    def put_back(self, position: Tensor, values: Tensor) -> None:
        """Make the weight again what it was at these flat positions of `loaded`."""
        part = self.loaded()
        part[torch.unravel_index(position, part.shape)] = values

    @torch.no_grad()
    def replace(self, new: Tensor, tensors: Iterable[Tensor] = (), *, start: bool = False) -> None:
        """Put a mask in force. Entries that were dropped or grown are zero afterwards in these tensors of the layer.

        With `start` the record of what was ever active begins anew.
        """
        before = local(self.mask)
        self._put(new)
        changed = ~(before & local(self.mask))
        for tensor in tensors:
            local(tensor).masked_fill_(changed, 0)
        packed = pack(local(self.mask))
        self.ever = packed if start else self.ever | packed

    def load(self, mask: Tensor, ever: Tensor) -> None:
        """Take over a saved mask and record; cut the weight if the mask is another one."""
        before = local(self.mask)
        self._put(mask)
        self.ever = pack(local(shard_like(ever, self.parameter)))
        if not torch.equal(before, local(self.mask)):
            self.apply()

    def follow(self) -> bool:
        """Move to the device the parameter is on now. Was that another one, or has it another precision?"""
        moved, cast = self.ever.device != self.parameter.device, self._dtype != self.parameter.dtype
        if moved:
            self._put(self.mask.to(self.parameter.device))
            self.ever = self.ever.to(self.parameter.device)
        self._dtype = self.parameter.dtype
        return moved or cast


class Packed:
    """A parameter of shape (1, active), from which `scatter` makes the weight. Every rank has it whole."""

    kind = "packed"
    part = None  # nothing is outside the mask

    def __init__(self, layer: Layer, parameter: nn.Parameter, scatter: Scatter) -> None:
        self.layer, self.parameter, self.scatter, self.grads = layer, parameter, scatter, scatter.grads
        self.ever = self.bits()
        self._dtype = parameter.dtype
        scatter.owned = True

    @property
    def index(self) -> Tensor:
        return self.scatter.index

    @property
    def mask(self) -> Tensor:
        """Computed from the index at every access; not cached."""
        mask = torch.zeros(self.layer.size, dtype=torch.bool, device=self.index.device)
        return mask.index_fill_(0, self.index.long(), True).view(self.layer.shape)

    def active(self) -> int:
        return self.index.numel()

    def to_dense(self, row: Tensor) -> Tensor:
        return to_dense(row, self.index, self.scatter.shape)

    def gradient(self) -> Tensor | None:
        rows = self.gradient_rows()
        return None if rows is None else join(rows, self.layer.shape)

    def gradient_rows(self) -> Rows | None:
        """The same, to be read by blocks of rows. All ranks must, in the same order."""
        given = self.grads.given(self.layer.name)
        if not given and ranks() == 1:
            return None

        def rows(block: slice) -> Tensor:
            if not given:  # another rank has used the layer, and this one must take part in the average
                shape = (block.stop - block.start, *self.layer.shape[1:])
                return average_over_ranks(self.parameter.new_zeros(shape))
            total = given[0](block)
            for more in given[1:]:
                total = total + more(block)
            return average_over_ranks(total)

        return rows

    def fan_in(self) -> Tensor:
        return torch.bincount(self.layer.neuron_of(self.index), minlength=self.layer.neurons)

    def bits(self) -> Tensor:
        return pack_index(self.index, self.layer.size)

    def ever_bits(self) -> Tensor:
        return self.ever

    def spread(self, per_neuron: Tensor) -> Tensor:
        return per_neuron[self.layer.neuron_of(self.index)].view(1, -1)

    def apply(self) -> None:
        """Forget what was loaded and lies outside the mask."""
        self.scatter.beyond = None

    def outside(self) -> Tensor:
        """Those that were loaded; none where a forward pass has told of them."""
        beyond = None if self.grads.told_beyond else self.scatter.beyond
        return torch.tensor(0 if beyond is None else beyond[0].numel())

    def loaded(self) -> Tensor:
        return self.scatter.loaded(self.parameter)

    @torch.no_grad()
    def put_back(self, position: Tensor, values: Tensor) -> None:
        weight = self.loaded().view(-1)
        weight[position] = values
        self.parameter.copy_(to_packed(weight, self.index))
        self.scatter.keep_beyond(weight)

    @torch.no_grad()
    def replace(self, new: Tensor, tensors: Iterable[Tensor] = (), *, start: bool = False) -> None:
        new = self._as_index(new)
        slot = torch.searchsorted(new, self.index, out_int32=new.dtype == torch.int32)
        slot.clamp_(max=max(new.numel() - 1, 0))
        stays = new[slot] == self.index
        to = slot[stays]  # their new places; all other entries become zero
        for tensor in list(tensors) or [self.parameter.detach()]:
            kept = tensor.view(-1)[stays]
            tensor.zero_().view(-1)[to] = kept
        self.index.copy_(new)
        self.ever = self.bits() if start else self.ever | self.bits()
        self.apply()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.scatter.owned = True

    @torch.no_grad()
    def load(self, mask: Tensor, ever: Tensor) -> None:
        self.ever = pack(ever).to(self.index.device)
        self.scatter.put(self._as_index(mask), self.parameter)

    def follow(self) -> bool:
        moved, cast = self.ever.device != self.parameter.device, self._dtype != self.parameter.dtype
        if moved:  # and so has the index, if it was by the model's own `to`
            self.scatter.index = self.index.to(self.parameter.device)
            self.ever = self.ever.to(self.parameter.device)
        self._dtype = self.parameter.dtype
        return moved or cast

    def _as_index(self, new: Tensor) -> Tensor:
        return (as_index(new) if new.dtype == torch.bool else new).to(self.index)


@torch.no_grad()
def hold(tensors: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Set each tensor to exactly zero outside the mask beside it (this rank's part, as bytes), all in one call.

    It multiplies the bits of the numbers, seen as integers: as fast as multiplying the numbers, several times faster
    than selecting by a bool mask, and exact also where a tensor holds inf or NaN, whose product with 0 is NaN.
    """
    numbers: list[Tensor] = []
    masks: list[Tensor] = []
    for tensor, mask in tensors:
        part = local(tensor)
        if part.is_complex():
            part, mask = torch.view_as_real(part), mask.unsqueeze(-1)
        numbers.append(part.view(INTEGER[part.itemsize]))
        masks.append(mask)
    multiply(numbers, masks)


def multiply(tensors: list[Tensor], by: list[Tensor]) -> None:
    """Multiply each tensor, in place, by the one that belongs to it."""
    if tensors:
        torch._foreach_mul_(tensors, by)  # pyright: ignore[reportPrivateImportUsage] # as torch's optimizers do


Storage = Dense | Packed
