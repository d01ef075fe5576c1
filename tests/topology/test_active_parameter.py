"""A parameter whose active values are kept apart is the parameter it was to everybody who looks at it."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparseopt.topology.active import ActiveEntries, TorchCopies
from sparseopt.topology.active_parameter import ActiveParameter, adopt, release

MASK = torch.tensor([[True, False, True], [False, True, False]])
OLD = torch.tensor([[9.0, 0.0, 8.0], [0.0, 7.0, 0.0]])
NEW = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])


@pytest.fixture
def entries() -> ActiveEntries:
    return ActiveEntries(MASK)


@pytest.fixture
def weight(entries: ActiveEntries) -> ActiveParameter:
    """Its memory holds the old values, its active values are the new ones."""
    parameter = nn.Parameter(OLD.clone())
    adopt(parameter, TorchCopies())
    assert isinstance(parameter, ActiveParameter)
    values = parameter.content.take(entries)
    values.copy_(NEW[MASK])
    parameter.content.put(values, entries)
    return parameter


def saved(tensor: Tensor) -> Any:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


LOOKS: dict[str, Callable[[Tensor], Any]] = {
    "values": lambda t: t.tolist(),
    "data": lambda t: t.data.tolist(),
    "numpy": lambda t: t.detach().numpy().tolist(),
    "norm": lambda t: t.norm().item(),
    "in a list": lambda t: torch.stack([t, t]).sum().item(),
    "foreach": lambda t: nn.utils.get_total_norm([t], foreach=True).item(),
    "keyword": lambda t: torch.ones(2, 3).add(other=t).tolist(),
    "linear": lambda t: nn.functional.linear(torch.ones(1, 3), t).tolist(),
    "metadata": lambda t: (t.shape, t.dtype, t.device, t.requires_grad, t.is_leaf, t.grad, t.stride()),
    "repr": repr,
    "copy": lambda t: (type(copy.deepcopy(t)), copy.deepcopy(t).tolist(), copy.deepcopy(t).requires_grad),
    "pickle": lambda t: (type(pickle.loads(pickle.dumps(t))), pickle.loads(pickle.dumps(t)).tolist()),
    "saved": lambda t: (type(saved(t)), saved(t).tolist()),
    "memory": lambda t: t.untyped_storage().tolist(),
    "vector": lambda t: nn.utils.parameters_to_vector([t]).tolist(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_it_looks_like_the_parameter(look: str, weight: ActiveParameter) -> None:
    assert LOOKS[look](weight) == LOOKS[look](nn.Parameter(NEW.clone()))


def in_place(parameter: Tensor) -> None:
    with torch.no_grad():
        parameter.mul_(2)


def step(parameter: Tensor, **how: bool) -> None:
    parameter.grad = torch.ones(2, 3)
    torch.optim.SGD([parameter], lr=0.5, **how).step()


EDITS: dict[str, Callable[[Tensor], Any]] = {
    "in place": in_place,
    "data": lambda t: t.data.add_(1),
    "set data": lambda t: setattr(t, "data", torch.full((2, 3), 5.0)),
    "one entry": lambda t: t.data.__setitem__((0, 0), 7.0),
    "numpy": lambda t: t.detach().numpy().fill(4),
    "foreach": lambda t: step(t, foreach=True),
    "fused": lambda t: step(t, fused=True),
    "initialised": lambda t: nn.init.ones_(t),
    "vector": lambda t: nn.utils.vector_to_parameters(torch.arange(6.0), [t]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edits_count(edit: str, weight: ActiveParameter, entries: ActiveEntries) -> None:
    expected = nn.Parameter(NEW.clone())
    EDITS[edit](expected)
    EDITS[edit](weight)
    assert torch.equal(weight.content.values(entries), expected.detach()[MASK])
    assert torch.equal(weight, expected)
    weight.content.take(entries)
    assert torch.equal(weight, expected * MASK)  # the optimizer holds it to the mask


def test_values_are_kept_while_nobody_looks(weight: ActiveParameter, entries: ActiveEntries) -> None:
    values = weight.content.values(entries)
    assert weight.content.take(entries) is values
    assert (weight.shape, weight.grad, weight.requires_grad) == (MASK.shape, None, True)
    assert weight.content.values(entries) is values
    assert torch.equal(weight.content._dense, OLD)


@pytest.mark.parametrize("keep", [lambda p: p.detach(), lambda p: p.data, lambda p: p.detach().numpy()])
def test_those_who_hold_the_memory_see_every_new_value(
    keep: Callable[[Tensor], Any], weight: ActiveParameter, entries: ActiveEntries
) -> None:
    kept = keep(weight)
    for factor in (2.0, 4.0):
        weight.content.put(factor * NEW[MASK], entries)
        assert torch.equal(torch.as_tensor(kept), factor * NEW)
    kept[0, 0] = 50
    assert weight.content.values(entries)[0] == 50


def test_memory_that_other_processes_see_is_always_complete(
    weight: ActiveParameter, entries: ActiveEntries
) -> None:
    weight.share_memory_()
    weight.content.put(2 * NEW[MASK], entries)
    assert torch.equal(weight.content._dense, 2 * NEW)


def test_a_graph_that_holds_the_parameter_notices_a_step(
    weight: ActiveParameter, entries: ActiveEntries
) -> None:
    x = torch.ones(1, 3, requires_grad=True)
    loss = nn.functional.linear(x, weight).sum()
    weight.content.put(weight.content.take(entries), entries)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_another_mask_reads_the_same_parameter(weight: ActiveParameter) -> None:
    other = ~MASK | MASK.roll(1, 0)
    assert torch.equal(weight.content.values(ActiveEntries(other)), NEW[other])


def test_memory_of_another_kind_makes_it_an_ordinary_parameter(weight: ActiveParameter) -> None:
    weight.data = weight.data.double()
    assert type(weight) is nn.Parameter
    assert torch.equal(weight, NEW.double())


def test_release_makes_it_an_ordinary_parameter(weight: ActiveParameter) -> None:
    release(weight)
    assert type(weight) is nn.Parameter
    assert torch.equal(weight, NEW)
    assert not hasattr(weight, "content")
