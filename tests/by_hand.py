"""Small layers with numbers worked out by hand, in float64: shared by the tests of methods."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

import sparseopt as so
from sparseopt.methods import LayerView, Memory
from sparseopt.topology import generator


def tensor(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def views(weights: Mapping[str, Tensor], grads: Mapping[str, Tensor] | None = None) -> dict[str, LayerView]:
    """Layers whose active weights are those that are not zero."""
    return {
        name: LayerView(
            weight != 0, weight, None if grads is None else grads[name], generator(0, 1, name), memory={}
        )
        for name, weight in weights.items()
    }


def chosen(method: so.Method, layers: dict[str, LayerView], step: int) -> dict[str, list[list[int]]]:
    counts = method.counts(layers, step, Memory())
    return {name: method.choose(view, counts[name]).int().tolist() for name, view in layers.items()}


def trained(
    weight: Sequence[float], method: so.Method, *, lr: float = 0.1, mask: list[int] | None = None
) -> tuple[nn.Linear, so.SparseOpt]:
    """One neuron with these incoming weights, trained by plain SGD without correction."""
    model = nn.Linear(len(weight), 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(tensor(weight))
    active = torch.tensor([mask or [1] * len(weight)]).bool()
    topology = so.sparsify(model, masks={"weight": active})
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    return model, so.SparseOpt(sgd, topology, method, correction="none")


def step_with(model: nn.Linear, optimizer: so.SparseOpt, gradient: Sequence[float]) -> None:
    model.weight.grad = tensor(gradient)
    optimizer.step()
