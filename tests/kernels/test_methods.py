"""Every method trains the same network on the kernels as without them."""

import pytest
import torch
from every_method import METHODS, STEPS
from torch import Tensor, nn

import sparseopt as so


def trained(method: str, accelerated: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 4))
    start = METHODS[method].starts_at()
    topology = so.sparsify(model, 0.8 if start is None else start, distribution="uniform", seed=2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = so.SparseOpt(sgd, topology, METHODS[method])
    if accelerated:
        so.accelerate(model, topology)
    for step in range(STEPS):
        draw = so.topology.generator(0, step)
        x, y = torch.randn(32, 64, generator=draw), torch.randint(4, (32,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("method", METHODS)
def test_it_is_the_same_training(method: str) -> None:
    without, on_kernels = trained(method, False), trained(method, True)
    for name, value in without.items():
        torch.testing.assert_close(on_kernels[name], value, rtol=1e-3, atol=1e-5)
