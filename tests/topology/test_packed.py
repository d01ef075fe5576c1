"""A model in packed storage is to its user the model it was: names, shapes, copies, files, ties."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import sparseopt as so


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 6, 2, groups=2), nn.Flatten(), nn.Linear(294, 5)
    )


def pair(**options: Any) -> list[tuple[nn.Sequential, so.Topology]]:
    made = []
    for storage in ("packed", "dense"):
        model = network()
        made.append((model, so.sparsify(model, 0.8, storage=storage, **options)))  # pyright: ignore[reportArgumentType]
    return made


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_it_is_the_dense_model_in_all_that_can_be_read() -> None:
    (packed, topology), (dense, reference) = pair(init="sparse")
    assert torch.equal(packed(X), dense(X))
    assert topology.summary() == reference.summary()
    assert topology.itop_rate() == reference.itop_rate()
    for name in reference.layers:
        assert torch.equal(topology.masks[name], reference.masks[name])
        assert torch.equal(topology.fan_in(name), reference.fan_in(name))
        assert torch.equal(topology.weight(name), reference.weight(name))
    torch.testing.assert_close(
        topology.state_dict()["layers"], reference.state_dict()["layers"], rtol=0, atol=0
    )


def test_states_go_both_ways() -> None:
    (packed, _), (dense, _) = pair()
    assert list(packed.state_dict()) == list(dense.state_dict())
    torch.testing.assert_close(packed.state_dict(), dense.state_dict(), rtol=0, atol=0)
    fresh = network(seed=1)
    fresh.load_state_dict(packed.state_dict(), strict=True)
    assert torch.equal(fresh(X), packed(X))
    changed = {name: 2 * each for name, each in dense.state_dict().items()}
    file = io.BytesIO()
    torch.save(changed, file)
    file.seek(0)
    packed.load_state_dict(torch.load(file, weights_only=True), strict=True)
    torch.testing.assert_close(packed.state_dict(), changed, rtol=0, atol=0)


SEVERAL = {
    "cell": lambda: nn.LSTMCell(6, 8),
    "attention": lambda: nn.MultiheadAttention(16, 2),
    "attention of other keys": lambda: nn.MultiheadAttention(16, 2, kdim=8, vdim=8),
    "weight_norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(32, 8))),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_states_of_modules_with_several_weights_go_both_ways(kind: str) -> None:
    torch.manual_seed(0)
    dense = SEVERAL[kind]()
    packed, other = copy.deepcopy(dense), SEVERAL[kind]()
    so.sparsify(dense, 0.5)
    so.sparsify(packed, 0.5, storage="packed")
    assert list(packed.state_dict()) == list(dense.state_dict())
    torch.testing.assert_close(packed.state_dict(), dense.state_dict(), rtol=0, atol=0)
    changed = {name: 2 * each for name, each in dense.state_dict().items()}
    packed.load_state_dict(changed, strict=True)
    other.load_state_dict(packed.state_dict(), strict=True)
    torch.testing.assert_close(other.state_dict(), changed, rtol=0, atol=0)


def test_what_a_state_has_outside_the_masks_waits_for_its_masks() -> None:
    """Loaded before the masks it goes with, a state loses nothing; without them, it is cut to the masks in force."""
    (packed, topology), (_, reference) = pair(seed=0)
    other = network(seed=2)
    its_topology = so.sparsify(other, 0.8, seed=9)
    packed.load_state_dict(other.state_dict())
    inside = other.state_dict()["4.weight"] * reference.masks["4.weight"]
    assert torch.equal(packed.state_dict()["4.weight"], inside)
    topology.load_state_dict(its_topology.state_dict())
    torch.testing.assert_close(packed.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_states_that_do_not_fit_are_refused_by_torch() -> None:
    (packed, _), _ = pair()
    state = packed.state_dict()
    with pytest.raises(RuntimeError, match=r"4\.weight|4\.parametrizations"):
        packed.load_state_dict({name: each for name, each in state.items() if name != "4.weight"})
    with pytest.raises(RuntimeError, match=r"4\.weight|4\.parametrizations"):
        packed.load_state_dict(state | {"4.weight": torch.zeros(5, 7)})


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    torch.manual_seed(0)
    dense = Tied()
    packed = copy.deepcopy(dense)
    reference, topology = so.sparsify(dense, 0.5), so.sparsify(packed, 0.5, storage="packed")
    assert len(topology.layers) == 1
    assert len(list(packed.parameters())) == 3
    x = torch.randn(3, 6)
    for model in (dense, packed):
        model(x).square().sum().backward()
    assert torch.equal(packed(x), dense(x))
    grad = topology.parameters["a.weight"].grad
    expected = reference.parameters["a.weight"].grad
    assert grad is not None
    assert expected is not None
    torch.testing.assert_close(grad.view(-1), expected[reference.masks["a.weight"]])


@pytest.mark.parametrize("method", [so.SET, so.RigL])
def test_weight_norm_has_something_to_divide_by_and_the_dense_masks(method: Any) -> None:
    masks = []
    for storage in ("packed", "dense"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(12, 16)), nn.Linear(16, 3))
        topology = so.sparsify(model, 0.5, distribution="uniform", seed=3, storage=storage)  # pyright: ignore[reportArgumentType]
        sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer = so.SparseOpt(sgd, topology, method(total_steps=60, every=2, drop_fraction=0.9))
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(8, 12)).pow(2).mean().backward()
            optimizer.step()
            assert all(parameter.isfinite().all() for parameter in model.parameters())
        masks.append(dict(topology.masks))
    assert all(torch.equal(mask, masks[1][name]) for name, mask in masks[0].items())


def test_attention() -> None:
    torch.manual_seed(0)
    dense = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    packed = copy.deepcopy(dense)
    so.sparsify(dense, 0.7)
    topology = so.sparsify(packed, 0.7, storage="packed")
    assert "self_attn.in_proj_weight" in topology.layers
    x = torch.randn(2, 5, 16)
    assert torch.equal(packed(x), dense(x))
    with torch.no_grad():
        torch.testing.assert_close(packed.eval()(x), dense.eval()(x))


def test_recurrent_layers_are_refused_by_name() -> None:
    model = nn.LSTM(6, 6)
    with pytest.raises(ValueError, match=r"storage='dense'"):
        so.sparsify(model, 0.5, storage="packed")
    so.sparsify(model, 0.5)


def test_a_second_sparsify_is_refused() -> None:
    (packed, _), _ = pair()
    with pytest.raises(ValueError, match="sparse already"):
        so.sparsify(packed, 0.5)
    with pytest.raises(ValueError, match="storage must be"):
        so.sparsify(network(), 0.5, storage="sparse")  # pyright: ignore[reportArgumentType]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, average: Any = None) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
        if average is not None:
            average.update_parameters(model)


def optimized(model: nn.Module, topology: so.Topology, every: int) -> so.SparseOpt:
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    return so.SparseOpt(sgd, topology, so.RigL(total_steps=100, every=every))


def test_torchs_own_average() -> None:
    """Of masks that stay; where masks move, it would mix weights, and says so before it does."""
    averages = []
    for model, topology in pair():
        optimizer = optimized(model, topology, every=6)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        train(model, optimizer, 5, average)
        averages.append(average)
        if topology.kind() == "packed":
            before = topology.state_dict()["layers"]
            with pytest.raises(RuntimeError, match=r"so\.average"):
                train(model, optimizer, 1, average)
            torch.testing.assert_close(topology.state_dict()["layers"], before, rtol=0, atol=0)
    ours, reference = (average.state_dict() for average in averages)
    torch.testing.assert_close(ours, reference)


def test_copies_keep_what_they_were_and_load_what_comes() -> None:
    (model, topology), _ = pair()
    optimizer = optimized(model, topology, every=2)
    best = copy.deepcopy(model)
    at_first = copy.deepcopy(best.state_dict())
    train(model, optimizer, 4)
    torch.testing.assert_close(best.state_dict(), at_first, rtol=0, atol=0)
    for _ in range(2):
        best.load_state_dict(model.state_dict())  # of other masks than its own
        torch.testing.assert_close(best.state_dict(), model.state_dict(), rtol=0, atol=0)
        train(model, optimizer, 4)
    tuned = copy.deepcopy(model)
    train(tuned, torch.optim.SGD(tuned.parameters(), lr=0.1), 2)
    train(model, optimizer, 2)


def test_the_model_moves_with_its_index() -> None:
    (packed, topology), _ = pair()
    packed.double()
    assert packed[4].weight.dtype == torch.float64
    assert not topology.storage["4.weight"].index.is_floating_point()  # pyright: ignore[reportAttributeAccessIssue]
    assert packed(X.double()).dtype == torch.float64
