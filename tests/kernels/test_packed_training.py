"""Training on the kernels in both storages, step by step from equal states; with packed storage nothing dense is made."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import sparseopt as so
from sparseopt.topology import dense_grads
from sparseopt.topology import scatter as scatter_module
from sparseopt.topology.storage import Packed


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense gradients in blocks of few rows, as those of large layers are."""
    monkeypatch.setattr(dense_grads, "BLOCK", 64)


def mlp() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 4))
    )


def cnn() -> nn.Sequential:
    layers = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, bias=False),
    )
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4))


NETWORKS = {"mlp": (mlp, (20,)), "cnn": (cnn, (3, 9, 9))}
METHODS = {
    "static": so.Static(),
    "set": so.SET(total_steps=100, every=3),
    "rigl": so.RigL(total_steps=100, every=3),
}


class Training:
    def __init__(self, network: str, storage: Any, method: so.Method, *, accelerated: bool = True) -> None:
        torch.manual_seed(0)
        make, self.shape = NETWORKS[network]
        self.model = make()
        self.topology = so.sparsify(self.model, 0.8, distribution="uniform", storage=storage)
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        self.optimizer = so.SparseOpt(sgd, self.topology, method)
        if accelerated:
            so.accelerate(self.model, self.topology, break_even=0.0)
            assert so.kernels.accelerated_layers(self.model)

    def backward(self, step: int) -> None:
        draw = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, *self.shape, generator=draw), torch.randint(4, (16,), generator=draw)
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()

    def entries(self, name: str) -> dict[str, Tensor]:
        """The layer's active values, and the momentum of each."""
        storage, parameter = self.topology.storage[name], self.topology.parameters[name]
        state = self.optimizer.state.get(parameter, {})
        tensors = {"weight": parameter.detach(), **state}
        if isinstance(storage, Packed):
            return {key: each.view(-1) for key, each in tensors.items()}
        return {key: each[self.topology.masks[name]] for key, each in tensors.items()}

    @torch.no_grad()
    def take(self, other: "Training") -> None:
        self.model.load_state_dict(copy.deepcopy(other.model.state_dict()))
        for name, parameter in self.topology.parameters.items():
            for key, values in other.entries(name).items():
                if key != "weight":
                    state, storage = self.optimizer.state[parameter][key], self.topology.storage[name]
                    if isinstance(storage, Packed):
                        state.copy_(values.view(1, -1))
                    else:
                        state[self.topology.masks[name]] = values


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", NETWORKS)
def test_steps_agree(network: str, method: str) -> None:
    packed, dense = (Training(network, storage, METHODS[method]) for storage in ("packed", "dense"))
    for step in range(1, 8):
        for run in (packed, dense):
            run.backward(step)
            run.optimizer.step()
        for name, mask in dense.topology.masks.items():
            assert torch.equal(packed.topology.masks[name], mask)
            torch.testing.assert_close(packed.entries(name), dense.entries(name), rtol=1e-5, atol=1e-6)
        packed.take(dense)


@pytest.mark.parametrize("network", NETWORKS)
def test_nothing_dense_is_made(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Training(network, "packed", METHODS["rigl"])
    run.backward(1)

    def refuse(*_: Any) -> Tensor:
        raise AssertionError("a dense weight was made")

    monkeypatch.setattr(scatter_module, "to_dense", refuse)
    sizes = {name: run.topology.size(name) for name in run.topology.layers}
    for step in range(2, 8):
        run.backward(step)
        for name, parameter in run.topology.parameters.items():
            assert parameter.grad is not None
            assert parameter.grad.numel() < sizes[name]
        run.optimizer.step()
    assert run.topology.version == 2


class Largest(TorchDispatchMode):
    """The number of entries of the largest tensor of floats that was made."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_floating_point():
            self.entries = max(self.entries, result.numel())
        return result


@pytest.mark.parametrize("passes", [1, 2])
def test_an_update_makes_no_gradient_of_a_layer_s_size(passes: int) -> None:
    """Nor scores: of linear layers on the kernels both exist by blocks of rows, also where passes add up."""
    run = Training("mlp", "packed", so.RigL(total_steps=100, every=1))
    before = dict(run.topology.masks)
    with Largest() as largest:
        for _ in range(passes):
            F.cross_entropy(run.model(torch.randn(4, 20)), torch.randint(4, (4,))).backward()
        run.optimizer.step()
    assert largest.entries < 30 * 40
    assert any(not torch.equal(mask, run.topology.masks[name]) for name, mask in before.items())


@pytest.mark.parametrize("storage", ["dense", "packed"])
@pytest.mark.parametrize("network", NETWORKS)
def test_users_clip_the_same_with_and_without_the_kernels(network: str, storage: str) -> None:
    sparse, plain = (Training(network, storage, so.Static(), accelerated=each) for each in (True, False))
    norms = []
    for run in (sparse, plain):
        run.backward(1)
        norms.append(nn.utils.clip_grad_norm_(run.model.parameters(), 0.1))
    torch.testing.assert_close(*norms, rtol=1e-4, atol=0.0)


def test_a_backward_pass_behind_a_step_is_refused() -> None:
    run = Training("mlp", "packed", so.Static())
    loss = run.model(torch.randn(4, 20)).sum()
    run.backward(1)
    run.optimizer.step()
    with pytest.raises(RuntimeError, match="call backward before step"):
        loss.backward()


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_rigl_grows_as_the_dense_network_in_evaluation_mode(storage: str) -> None:
    """Frozen batch norm, as in fine-tuning: the dense gradient is there all the same."""
    masks = []
    for accelerated in (True, False):
        run = Training("mlp", storage, so.RigL(total_steps=100, every=1), accelerated=accelerated)
        run.model.eval()
        run.backward(1)
        run.optimizer.step()
        masks.append(dict(run.topology.masks))
    for name, mask in masks[0].items():
        assert torch.equal(mask, masks[1][name])
