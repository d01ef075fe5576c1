"""A run in packed storage is the run in dense storage bit for bit: every elementwise optimizer, method and correction.

Where a tensor does not fill the CPU's vectors, torch computes its last few entries by other instructions, of which some round
another way. The layers here fill vectors of any width, packed and dense, so that equal numbers go through equal operations.
`test_packed_storage` has layers of any size, compared after every step.
"""

from typing import Any

import pytest
import torch
from every_base import BASES
from every_method import methods
from torch import Tensor, nn

import sparseopt as so
from sparseopt.optim.fit import why_not_packed
from sparseopt.topology.scatter import to_packed
from sparseopt.topology.storage import Packed

STEPS = 9
HELD = {name: method for name, method in methods(STEPS, every=2).items() if why_not_packed(method) is None}
CORRECTIONS = ["auto", "layer", "global", "overall", "unnormalized", "measured", "angular", "none"]


def run(storage: Any, base: str, method: so.Method, **options: Any) -> so.SparseOpt:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(8, 16, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)),
    )
    topology = so.sparsify(model, 0.75, distribution="uniform", storage=storage)
    optimizer = so.SparseOpt(BASES[base](model.parameters()), topology, method, **options)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(step)
        images, labels = torch.randn(24, 8, 3, 3, generator=draw), torch.randint(16, (24,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return optimizer


def assert_the_same_run(*settings: Any, **options: Any) -> None:
    packed, dense = (run(storage, *settings, **options) for storage in ("packed", "dense"))
    for name, storage in packed.topology.storage.items():
        assert isinstance(storage, Packed)
        assert storage.active() % 32 == 0
        assert torch.equal(packed.topology.weight(name), dense.topology.weight(name))
        assert torch.equal(storage.ever_bits(), dense.topology.storage[name].ever_bits())
        its = dense.topology.parameters[name]
        state: dict[str, Any] = packed.state.get(storage.parameter, {})
        assert state.keys() == dense.state.get(its, {}).keys()
        for key, value in state.items():
            expected = dense.state[its][key]
            if isinstance(value, Tensor):
                assert torch.equal(
                    value, to_packed(expected, storage.index) if expected.shape == its.shape else expected
                )


@pytest.mark.parametrize("method", ["static", "set", "rigl"])
@pytest.mark.parametrize("base", BASES)
def test_every_optimizer(base: str, method: str) -> None:
    assert_the_same_run(base, HELD[method], correction="layer")


@pytest.mark.parametrize("method", HELD)
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_every_method_and_correction(method: str, correction: Any) -> None:
    assert_the_same_run("adamw", HELD[method], correction=correction)


@pytest.mark.parametrize("base", ["momentum", "adam"])
def test_growing_from_what_is_corrected(base: str) -> None:
    method = so.RigL(total_steps=STEPS, every=2, until=1.0, grow_from="corrected")
    assert_the_same_run(base, method, correction="layer")


@pytest.mark.parametrize("base", ["momentum", "adamw"])
def test_correct_decay(base: str) -> None:
    assert_the_same_run(base, HELD["rigl"], correction="layer", correct_decay=True)
