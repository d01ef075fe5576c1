"""Bad input is refused with the value and the remedy, before anything has changed."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so
from sparseopt.methods.view import Count, LayerView

Network = tuple[nn.Sequential, so.Topology]
Build = Callable[..., Network]


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"correction": "layers"}, ValueError, "correction must be one of .*layer, global.*got 'layers'"),
        ({"clip": "dense"}, ValueError, "clip must be 'active' or 'paper', got 'dense'"),
        ({"max_grad_norm": 0.0}, ValueError, "max_grad_norm must be positive or None, got 0.0"),
        ({"max_grad_norm": float("nan")}, ValueError, "max_grad_norm must be positive or None, got nan"),
        ({"method": so.RigL}, TypeError, "method must be Static"),
        ({"method": "rigl"}, TypeError, "method must be .*got 'rigl'"),
        ({"base": 3}, TypeError, "base must be a torch.optim.Optimizer, got int"),
        ({"topology": nn.Linear(2, 2)}, TypeError, "topology must be what sparsify returned, got Linear"),
        (
            {"correction": lambda topology: {"9.weight": torch.ones(3)}},
            ValueError,
            r"names \['9.weight'\], which are not among",
        ),
        (
            {"correction": lambda topology: {"0.weight": torch.ones(3)}},
            ValueError,
            r"shape \(3,\); one factor a neuron is \(16,\)",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_options_are_checked_and_the_topology_stays_free(
    build: Build, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    model, topology = build()
    arguments = {"base": sgd(model), "topology": topology, "method": so.Static()} | options
    with pytest.raises(error, match=message) as raised:
        so.SparseOpt(**arguments)
    # the failed attempt, still alive in the traceback, holds nothing
    so.SparseOpt(sgd(model), topology, so.Static())
    assert raised.value is not None


def test_an_optimizer_that_lacks_parameters_is_refused(build: Build) -> None:
    model, topology = build()
    base = torch.optim.SGD([p for name, p in model.named_parameters() if name != "3.weight"], lr=0.1)
    with pytest.raises(ValueError, match=r"1 of .*3 parameters.*3\.weight.*exclude="):
        so.SparseOpt(base, topology, so.Static())


def test_a_topology_of_another_model_is_named_as_such(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    (model, _), (_, topology) = build(), build()
    with pytest.raises(ValueError, match="of another model"):
        so.SparseOpt(sgd(model), topology, so.Static())
    so.accelerate(model, topology)
    assert "the topology is of another model" in caplog.text


def test_a_method_that_begins_at_another_sparsity_says_so(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    model, topology = build(masks=None, sparsity=0.9)
    method = so.NM(so.SET(total_steps=100), n=2, m=4)
    optimizer = so.SparseOpt(sgd(model), topology, method, correction="none")
    # half of 12 x 16 and of 16 x 10; 10 inputs are no groups of four, and stay dense: 216 of 392
    assert re.search(r"NM begins with masks of its own: sparsity 0\.9\S* became 0\.449\b", caplog.text)
    assert f"{method}, {topology}, correction='none'" in repr(optimizer)


def test_one_optimizer_a_topology(build: Build, train: Callable[..., None]) -> None:
    model, topology = build()
    first = so.SparseOpt(sgd(model), topology, so.RigL(total_steps=10, every=1))
    needed = topology.dense_grads.wanted
    with pytest.raises(ValueError, match=r"already .*SparseOpt"):
        so.SparseOpt(sgd(model), topology, so.Static())
    assert topology.dense_grads.wanted == needed
    train(model, first, 2)
    del first
    # a topology whose optimizer is gone is free
    train(model, so.SparseOpt(sgd(model), topology, so.Static()), 2)


@pytest.mark.parametrize("outer", ["sparseopt", "ham"])
def test_sparseopt_is_the_outermost_optimizer(build: Build, outer: str) -> None:
    model, topology = build(include="0.weight")
    inner = so.SparseOpt(sgd(model), topology, so.Static())
    others = so.sparsify(model, 0.5, exclude="0.weight")
    with pytest.raises(TypeError, match=r"SparseOpt .*outermost"):
        so.HAM(inner) if outer == "ham" else so.SparseOpt(inner, others, so.Static())


def test_a_sparse_initialisation_with_a_correction_warns(build: Build) -> None:
    for correction in ("layer", "global", "unnormalized"):
        model, topology = build(init="sparse")
        with pytest.warns(UserWarning, match="over-corrects"):
            so.SparseOpt(sgd(model), topology, so.Static(), correction=correction)  # type: ignore[arg-type]
    model, topology = build(init="sparse")
    so.SparseOpt(sgd(model), topology, so.Static(), correction="none")  # and a warning here would be an error


def test_a_method_that_changes_the_counts_is_refused_and_changes_nothing(build: Build) -> None:
    class Greedy(so.SET):
        def choose(self, view: LayerView, count: Count) -> Tensor:
            return torch.ones_like(view.mask)

    model, topology = build()
    optimizer = so.SparseOpt(sgd(model), topology, Greedy(total_steps=10, every=1))
    masks = {name: mask.clone() for name, mask in topology.masks.items()}
    model(torch.randn(4, 12)).sum().backward()
    with pytest.raises(ValueError, match=r"as many .*as it drops"):
        optimizer.step()
    for name, mask in masks.items():
        assert torch.equal(topology.masks[name], mask)


def test_a_schedule_without_a_single_update_is_told(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    model, topology = build()
    with caplog.at_level("WARNING"):
        so.SparseOpt(sgd(model), topology, so.RigL(total_steps=50))
    assert re.search(r"RigL .*every=100.* before step 38;", caplog.text)


@pytest.fixture
def one_rank() -> Iterator[None]:
    from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed package")
def test_packed_storage_and_fsdp2() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    sharded = nn.Sequential(nn.Linear(8, 4))
    fully_shard(sharded, mesh=mesh)
    with pytest.raises(ValueError, match="is sharded by FSDP2"):
        so.sparsify(sharded, 0.5, storage="packed")
    for storage in ("packed", "dense"):
        model = nn.Sequential(nn.Linear(8, 4))
        topology = so.sparsify(model, 0.5, storage=storage)
        fully_shard(model, mesh=mesh)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match="fully_shard before sparsify, with storage='dense'"):
            so.SparseOpt(sgd, topology, so.Static())


@pytest.mark.parametrize("method", [so.GMP(total_steps=20, sparsity=0.9), so.SET(total_steps=20)])
def test_frozen_layers_that_will_not_follow_a_schedule_are_told_of(
    method: so.Method, caplog: pytest.LogCaptureFixture
) -> None:
    """Under SET nothing is missed: the layer has the sparsity it was given."""
    model = nn.Sequential(nn.Linear(30, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
    topology = so.sparsify(model, 0.0)
    model[3].requires_grad_(False)
    with caplog.at_level("WARNING"):
        so.SparseOpt(sgd(model), topology, method)
    told = [line for line in caplog.messages if "requires_grad" in line]
    assert [("GMP" in line, "3.weight" in line) for line in told] == [(True, True)] * isinstance(
        method, so.GMP
    )
