"""A tensor kept as its active values is a dense tensor to everybody who looks at it."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sparseopt.topology.active import ActiveEntries
from sparseopt.topology.active_tensor import ActiveTensor

MASK = torch.tensor([[True, False, True], [False, True, False]])
DENSE = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])


@pytest.fixture
def entries() -> ActiveEntries:
    return ActiveEntries(MASK)


@pytest.fixture
def tensor(entries: ActiveEntries) -> ActiveTensor:
    return ActiveTensor(torch.tensor([1.0, 2.0, 3.0]), entries, MASK.shape)


LOOKS: dict[str, Callable[[Tensor], Any]] = {
    "values": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy().tolist(),
    "norm": lambda t: t.norm().item(),
    "in a list": lambda t: torch.stack([t, t]).sum().item(),
    "foreach": lambda t: torch.nn.utils.get_total_norm([t], foreach=True).item(),
    "as an argument": lambda t: torch.ones(2, 3).mul_(t).tolist(),
    "metadata": lambda t: (t.shape, t.dtype, t.device, t.dim(), t.numel(), t.stride(), t.is_contiguous()),
    "repr": repr,
    "copy": lambda t: copy.deepcopy(t).tolist(),
    "element": lambda t: t[1, 1].item(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_it_looks_like_the_dense_tensor(look: str, tensor: ActiveTensor) -> None:
    assert LOOKS[look](tensor) == LOOKS[look](DENSE.clone())
    assert isinstance(tensor, Tensor)


EDITS: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda t: t.mul_(2),
    "data": lambda t: t.data.add_(1),
    "set data": lambda t: setattr(t, "data", torch.full((2, 3), 5.0)),
    "item": lambda t: t.__setitem__((0, 1), 7.0),
    "numpy": lambda t: t.numpy().fill(4),
    "alias": lambda t: t.detach().zero_(),
    "view": lambda t: t.view(-1)[2:].neg_(),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edits_count(edit: str, tensor: ActiveTensor, entries: ActiveEntries) -> None:
    expected = DENSE.clone()
    EDITS[edit](expected)
    EDITS[edit](tensor)
    assert torch.equal(tensor, expected)
    assert torch.equal(tensor.content.take(entries), expected[MASK])


def test_new_values_reach_those_who_hold_the_dense_tensor(
    tensor: ActiveTensor, entries: ActiveEntries
) -> None:
    view = tensor.view(-1)
    tensor.add_(1)  # inactive entries, too
    tensor.content.put(torch.tensor([4.0, 5.0, 6.0]), entries)
    assert view.tolist() == [4, 0, 5, 0, 6, 0]


def test_dense_memory_that_nobody_holds_is_given_back(tensor: ActiveTensor, entries: ActiveEntries) -> None:
    assert tensor.sum() == 6
    values = torch.tensor([4.0, 5.0, 6.0])
    tensor.content.put(values, entries)
    assert tensor.content.take(entries).data_ptr() == values.data_ptr()


def test_another_mask_reads_the_same_tensor(tensor: ActiveTensor) -> None:
    other = ActiveEntries(~MASK | MASK.roll(1, 0))
    assert torch.equal(tensor.content.take(other), DENSE[~MASK | MASK.roll(1, 0)])


def test_a_saved_tensor_is_an_ordinary_one(tensor: ActiveTensor) -> None:
    file = io.BytesIO()
    torch.save({"state": tensor}, file)
    file.seek(0)
    loaded = torch.load(file)["state"]
    assert type(loaded) is Tensor
    assert torch.equal(loaded, DENSE)
