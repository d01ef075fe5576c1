"""Train, average, checkpoint, deploy: the averaged network is sparse by the masks in force, at any time."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

import sparseopt as so


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))


class Run:
    def __init__(self, storage: Any) -> None:
        self.model = network()
        self.topology = so.sparsify(self.model, 0.8, seed=1, storage=storage)
        adam = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.optimizer = so.SparseOpt(adam, self.topology, so.RigL(total_steps=60, every=5))
        self.ema = so.average(self.model, self.topology, decay=0.9)

    def train(self, steps: range) -> None:
        for step in steps:
            draw = so.topology.generator(0, step)
            x = torch.randn(64, 20, generator=draw)
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), x[:, :4].argmax(1)).backward()
            self.optimizer.step()
            self.ema.update_parameters(self.model)

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "ema": self.ema}


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_train_average_checkpoint_deploy(storage: str) -> None:
    run = Run(storage)
    run.train(range(20))
    file = io.BytesIO()
    torch.save({name: part.state_dict() for name, part in run.parts().items()}, file)
    run.train(range(20, 40))

    again = Run(storage)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    for name, part in again.parts().items():
        part.load_state_dict(saved[name])
    again.train(range(20, 40))
    for one, other in zip(run.ema.parameters(), again.ema.parameters(), strict=True):
        assert torch.equal(one, other), "a resumed average is the same average"

    for name, mask in run.topology.masks.items():
        averaged = run.ema.module.state_dict()[name]
        assert not averaged[~mask].any()
        assert averaged[mask].any()

    deployed = network()  # an ordinary network takes the averaged weights
    deployed.load_state_dict(run.ema.module.state_dict())
    topology = so.sparsify(deployed, masks=dict(run.topology.masks))
    assert topology.active() == run.topology.active()
    x = torch.randn(500, 20, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        accuracy = (deployed.eval()(x).argmax(1) == x[:, :4].argmax(1)).float().mean()
    assert accuracy > 0.5  # chance: 0.25


def test_a_packed_average_is_the_dense_one() -> None:
    runs = [Run("packed"), Run("dense")]
    for first in range(0, 40, 8):
        for run in runs:
            run.train(range(first, first + 8))
        packed, dense = (run.ema.state_dict() for run in runs)
        assert packed.keys() == dense.keys()
        for name, value in packed.items():
            torch.testing.assert_close(value, dense[name])


def test_it_is_the_exponential_average() -> None:
    model: Any = nn.Linear(2, 1, bias=False).double()
    topology = so.sparsify(model, masks={"weight": torch.tensor([[True, False]])})
    ema = so.average(model, topology, decay=0.75)
    values = []
    for weight in (4.0, 8.0):
        with torch.no_grad():
            model.weight[0, 0] = weight
        ema.update_parameters(model)
        values.append(ema.module.get_parameter("weight").tolist())
    assert values == [[[4, 0]], [[0.75 * 4 + 0.25 * 8, 0]]]


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_a_copy_of_the_average_alone_follows_the_network(storage: str) -> None:
    run = Run(storage)
    run.train(range(12))
    copied = copy.deepcopy(copy.deepcopy(run.ema))
    for step in range(12, 30):
        run.train(range(step, step + 1))
        copied.update_parameters(run.model)
    for one, other in zip(run.ema.state_dict().values(), copied.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_an_average_that_is_copied_with_its_network_follows_the_copy(storage: str) -> None:
    run = Run(storage)
    run.train(range(12))
    again = copy.deepcopy(run)
    run.train(range(12, 30))
    again.train(range(12, 30))
    for one, other in zip(run.ema.state_dict().values(), again.ema.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    for name, mask in again.topology.masks.items():
        assert not again.ema.module.state_dict()[name][~mask].any()


def test_what_cannot_be_averaged_is_refused() -> None:
    model, other = network(), network()
    topology = so.sparsify(model, 0.5)
    with pytest.raises(ValueError, match=r"another model.* 0\.weight"):
        so.average(other, topology)
    with pytest.raises(ValueError, match=r"decay .*\[0, 1\).* 1"):
        so.average(model, topology, decay=1)


def test_semi_structured_tensors_are_refused_without_cuda() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    topology = so.sparsify(model, masks="2:4")
    with pytest.raises(ValueError, match=r"CUDA.* cpu"):
        so.kernels.to_semi_structured(model, topology)
    dense = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with pytest.raises(ValueError, match="2:4"):
        so.kernels.to_semi_structured(dense, so.sparsify(dense, 0.0))
