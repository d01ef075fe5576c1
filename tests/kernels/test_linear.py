"""Chains of linear layers against float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparseopt as so

Check = Callable[..., None]


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("batch", [1, 7, 16, 33, 128])
def test_gradients_are_those_of_the_masked_dense_chain(check: Check, batch: int, sparsity: float) -> None:
    torch.manual_seed(batch)
    model = nn.Sequential(
        nn.Linear(30, 50), nn.ReLU(), nn.Linear(50, 40, bias=False), nn.ReLU(), nn.Linear(40, 10)
    )
    topology = so.sparsify(model, sparsity, distribution="uniform")
    check(model, topology, *torch.randn(5, batch, 30))


def test_chains_that_end_in_relu_and_neurons_without_inputs(check: Check) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 50), nn.Linear(50, 40), nn.ReLU())
    masks = {name: torch.rand(p.shape) < 0.3 for name, p in model.named_parameters() if p.dim() == 2}
    for mask in masks.values():
        mask[1] = False
        mask[:, 2] = False
    check(model, so.sparsify(model, 0.7, masks=masks), torch.randn(9, 30))


def test_more_than_two_axes_and_other_layers_between(check: Check) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 30), nn.LayerNorm(30), nn.ReLU(), nn.Linear(30, 30), nn.GELU(), nn.Linear(30, 5)
    )
    check(model, so.sparsify(model, 0.8), torch.randn(3, 7, 12))


def test_an_empty_batch() -> None:
    model = nn.Sequential(nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 5))
    so.accelerate(model, so.sparsify(model, 0.8))
    assert model(torch.randn(0, 12)).shape == (0, 5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch", [2, 7, 16, 33, 128])
def test_batch_norm_between_linear_layers(check: Check, batch: int, training: bool) -> None:
    torch.manual_seed(batch)
    model = nn.Sequential(
        *(nn.Linear(30, 50), nn.BatchNorm1d(50), nn.ReLU()),
        *(nn.Linear(50, 40, bias=False), nn.ReLU(), nn.Linear(40, 40), nn.BatchNorm1d(40, affine=False)),
        *(nn.Linear(40, 20), nn.BatchNorm1d(20, momentum=None), nn.ReLU()),
    )
    model(torch.randn(50, 30))  # running statistics of its own
    topology = so.sparsify(model, 0.7, distribution="uniform")
    check(model.train(training), topology, *torch.randn(5, batch, 30))


def test_batch_norm_over_several_axes_runs_as_it_is_written(check: Check) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 30), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(30, 5))
    check(model, so.sparsify(model, 0.8), torch.randn(3, 7, 12))


def test_batch_norm_of_one_sample_is_refused_as_torch_does() -> None:
    model = nn.Sequential(nn.Linear(12, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5))
    so.accelerate(model, so.sparsify(model, 0.8))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.randn(1, 12))


@pytest.mark.parametrize("sparsity", [0.9, 0.1])
def test_an_engine_has_the_batch_norm_of_its_sparse_chains_folded_in(sparsity: float) -> None:
    """A chain that is not sparse enough for the kernels stays as it is written."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400, bias=False), nn.BatchNorm1d(400), nn.ReLU(), nn.Linear(400, 10))
    model(torch.randn(64, 300))
    engine = so.compile_inference(model, so.sparsify(model, sparsity))
    x = torch.randn(9, 300)
    torch.testing.assert_close(engine(x), model.eval()(x))
    assert [each.reason is None for each in engine.layers] == [sparsity > 0.5] * 2


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.out = (
            nn.Linear(20, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 4),
        )
        self.c.weight = self.b.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.c(F.relu(self.b(F.relu(self.a(x)))))))


def test_layers_that_share_a_weight(check: Check) -> None:
    torch.manual_seed(0)
    model = Tied()
    check(model, so.sparsify(model, 0.6), torch.randn(9, 20))


@pytest.mark.parametrize("features", [10, 30])
def test_inputs_of_another_size_are_refused(features: int) -> None:
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 4))
    so.accelerate(model, so.sparsify(model, 0.9))
    with pytest.raises(RuntimeError, match=f"4x{features} and 20x40"):
        model(torch.ones(4, features))


def test_weights_of_another_size_are_refused() -> None:
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 4))
    so.accelerate(model, so.sparsify(model, 0.9))
    model[2].weight = nn.Parameter(torch.ones(4, 10))  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuntimeError, match="4x40 and 10x4"):
        model(torch.ones(4, 20))


def test_what_is_not_a_number_stays_so() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 4)
    )
    so.accelerate(model.eval(), so.sparsify(model, 0.7))
    x = torch.randn(9, 20)
    x[3] = float("nan")
    results = []
    for forward in (model, lambda x: type(model).forward(model, x)):
        model.zero_grad()
        y = forward(x)
        y.sum().backward()
        gradients = [each.grad.isnan().any() for each in model.parameters() if each.grad is not None]
        results.append([y.isnan().tolist(), gradients])
    assert results[0] == results[1]
    assert any(results[0][1])


def test_an_empty_batch_leaves_batch_norm_alone() -> None:
    model = nn.Sequential(nn.Linear(12, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5))
    so.accelerate(model, so.sparsify(model, 0.8))
    assert model(torch.randn(0, 12)).shape == (0, 5)
    assert not torch.isnan(model[1].running_mean).any()  # pyright: ignore[reportArgumentType]
