"""`sparsify` on the networks people have: pretrained, recurrent, transposed, parametrised, partly frozen."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

import sparseopt as so
from sparseopt.topology.start import kinds
from sparseopt.topology.start.find import DEPTHWISE, EMBEDDING, EXCLUDED, FROZEN, UNKNOWN, VECTOR


def mlp() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 5, bias=False))


def test_magnitude_keeps_the_largest_weights_of_each_layer() -> None:
    model = mlp()
    before = copy.deepcopy(model)
    topology = so.sparsify(model, 0.8, distribution="uniform", masks="magnitude")
    for index, kept in ((0, 40), (2, 20)):
        weight = before[index].weight.detach()
        threshold = weight.abs().flatten().sort(descending=True).values[kept - 1]
        assert torch.equal(topology.masks[f"{index}.weight"], weight.abs() >= threshold)
        assert torch.equal(model[index].weight, weight * topology.masks[f"{index}.weight"])


def test_one_threshold_for_the_network_and_no_layer_emptied() -> None:
    model = mlp()
    with torch.no_grad():
        model[2].weight.mul_(1e-3)
    topology = so.sparsify(model, 0.9, masks="magnitude-global")
    assert topology.active() == 30
    assert topology.active("2.weight") == 1
    assert topology.masks["2.weight"].flatten()[model[2].weight.abs().argmax()]


def test_n_of_m() -> None:
    model = nn.Linear(8, 2, bias=False)
    before = model.weight.detach().clone()
    topology = so.sparsify(model, masks="1:4")
    assert topology.active() == 4
    assert torch.equal(topology.masks["weight"].view(4, 4).int().argmax(1), before.abs().view(4, 4).argmax(1))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_weights_are_sparse_and_train(kind: Any) -> None:
    model = kind(6, 8, num_layers=2, bidirectional=True)
    topology = so.sparsify(model, 0.5, distribution="uniform")
    assert set(topology.masks) == {name for name, _ in model.named_parameters() if name.startswith("weight")}
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    assert topology.layers["weight_hh_l1_reverse"].neurons == gates * 8
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = so.SparseOpt(sgd, topology, so.RigL(total_steps=9, every=2))
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(3, 2, 6))[0].pow(2).sum().backward()
        optimizer.step()
    assert all(not topology.parameters[name].detach()[~mask].any() for name, mask in topology.masks.items())


def test_cells_too() -> None:
    assert set(so.sparsify(nn.LSTMCell(4, 4), 0.5).masks) == {"weight_ih", "weight_hh"}


class Conv1D(nn.Module):
    """As GPT-2 of Hugging Face's transformers has it: x @ weight + bias."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


def test_a_transposed_linear_layer_counts_what_reaches_its_outputs() -> None:
    module = Conv1D(6, 4)
    topology = so.sparsify(module, 0.5, seed=3)
    layer = topology.layers["weight"]
    assert (layer.neurons, layer.inputs) == (6, 4)
    with torch.no_grad():
        module.weight.copy_(topology.masks["weight"].float())
    assert topology.fan_in("weight").tolist() == module(torch.ones(4)).tolist()
    matrix = torch.arange(24.0).view(4, 6)
    assert torch.equal(layer.from_neurons(layer.by_neuron(matrix)), matrix)
    assert layer.broadcast(torch.arange(6.0)).shape == (1, 6)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(6, 4))


def test_a_module_of_ones_own_is_registered(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.ModuleDict({"mix": Mixer(), "out": nn.Linear(4, 4)})
    with caplog.at_level(logging.WARNING):
        before = so.sparsify(copy.deepcopy(model), 0.5)
    assert list(before.masks) == ["out.weight"]
    assert {each.name: each.why for each in before.left_dense}["mix.left"] == UNKNOWN
    assert "48 of its 64 weights" in caplog.text
    so.register_layer(Mixer, "left")
    so.register_layer(Mixer, "right", neurons_dim=1)
    topology = so.sparsify(model, 0.5)
    assert [topology.layers[f"mix.{side}"].neurons for side in ("left", "right")] == [6, 4]
    with pytest.raises(ValueError, match=r"neurons_dim .*0 or 1.* 2"):
        so.register_layer(Mixer, "left", neurons_dim=2)
    with monkeypatch.context() as patch:
        patch.setitem(kinds._registered, Mixer, {"rihgt": False})
        with pytest.raises(ValueError, match="Mixer has a weight 'rihgt', and it has left, right"):
            so.sparsify(Mixer(), 0.5)
    with pytest.raises(TypeError, match=r"kind .*nn\.Module"):
        so.register_layer(Mixer(), "left")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_parametrised_weight_is_sparse_in_what_the_layer_computes(norm: Any) -> None:
    model: Any = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    norm(model[0])
    topology = so.sparsify(model, 0.5, distribution="uniform")
    (name,) = (name for name in topology.masks if name.startswith("0."))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = so.SparseOpt(sgd, topology, so.RigL(total_steps=20, every=3))
    for _ in range(7):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).sum().backward()
        optimizer.step()
    assert not model[0].weight.detach()[~topology.masks[name]].any()
    assert int((model[0].weight != 0).sum()) >= 20


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize(
    "method",
    [
        so.SET(total_steps=60, every=1, drop_fraction=1.0, until=1.0),
        so.RigL(total_steps=60, every=2, drop_fraction=0.9),
        so.GMP(total_steps=60, every=5, sparsity=0.8),
        so.ACDC(total_steps=60, sparsity=0.8),
    ],
    ids=repr,
)
def test_weight_norm_always_has_something_to_divide_by(norm: Any, dim: int | None, method: so.Method) -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
    norm(model[0], dim=dim)
    start = method.starts_at()
    topology = so.sparsify(model, 0.5 if start is None else start, distribution="uniform", seed=3)
    counts = {name: topology.active(name) for name in topology.masks}
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), topology, method)
    for _ in range(60):
        optimizer.zero_grad()
        model(torch.randn(8, 12)).pow(2).mean().backward()
        optimizer.step()
        assert all(parameter.isfinite().all() for parameter in model.parameters())
    if start is None:
        assert {name: topology.active(name) for name in topology.masks} == counts
    else:
        assert topology.sparsity() == pytest.approx(0.8, abs=0.01)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm])
def test_weight_norm_of_a_neuron_without_inputs_is_refused(norm: Any) -> None:
    model: Any = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 3))
    norm(model[0])
    with pytest.raises(ValueError, match=r"'0\..*weight_norm.* 64 slices.* 38 active.*exclude='0\."):
        so.sparsify(model, 0.95, distribution="uniform")
    (name,) = (name for name, each in model.named_parameters() if each.shape == (64, 12))
    empty = torch.ones(64, 12).bool()
    empty[5] = False
    with pytest.raises(ValueError, match=r"'0\..*weight_norm.*fan_in_masks\(model, sparsity, 'constant'\)"):
        so.sparsify(model, masks={name: empty})
    masks = so.topology.fan_in_masks(model, 0.8, "constant")
    assert "a sparse weight is computed from it" in so.sparsify(model, masks=masks).summary()


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.parametrize("masks", [None, "magnitude", "magnitude-global"])
def test_every_neuron_under_weight_norm_begins_with_a_weight(norm: Any, masks: str | None) -> None:
    """16 neurons of 16 inputs at 90%: 26 weights, which random places do not share out to all of them."""
    for seed in range(5):
        torch.manual_seed(seed)
        model: Any = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        norm(model[0])
        topology = so.sparsify(model, 0.9, distribution="uniform", masks=masks, seed=seed)
        assert topology.active() == 51
        assert bool((topology.fan_in(next(name for name in topology.layers if name[0] == "0")) > 0).all())
        assert model(torch.randn(2, 16)).isfinite().all()


@pytest.mark.parametrize(
    "method",
    [
        so.GMP(total_steps=20, every=1, sparsity=0.97),
        so.ACDC(total_steps=20, sparsity=0.97, scope="layer"),
        so.TopKAST(total_steps=20, sparsity=0.97, backward_sparsity=0.9),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_method_that_would_leave_weight_norm_too_little_is_refused_before_the_training(method: Any) -> None:
    model: Any = nn.Sequential(parametrizations.weight_norm(nn.Linear(16, 16)), nn.ReLU(), nn.Linear(16, 64))
    topology = so.sparsify(model, 0.0)
    with pytest.raises(
        ValueError, match=rf"'0\..*16 slices.*{type(method).__name__}.* 8 active.*exclude='0\."
    ):
        so.SparseOpt(torch.optim.SGD(model.parameters(), lr=0.1), topology, method)


@pytest.mark.parametrize("kind", [so.GMP, so.GraNet, so.ACDC, so.AnnealedTopK])
def test_so_is_one_that_would_leave_the_network_too_little(kind: Any) -> None:
    """16 norms and another layer need 17 weights; 99% of 1,280 leave 13."""
    model: Any = nn.Sequential(parametrizations.weight_norm(nn.Linear(16, 16)), nn.ReLU(), nn.Linear(16, 64))
    options: dict[str, Any] = {} if kind is so.AnnealedTopK else {"scope": "global"}
    options |= {} if kind is so.ACDC else {"start": 0.0}
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"sparsity=0\.99 .* 13 .* 17: .*'0\."):
        so.SparseOpt(sgd, so.sparsify(model, 0.0), kind(total_steps=20, sparsity=0.99, **options))


@pytest.mark.parametrize(
    "method",
    [
        so.GMP(total_steps=20, every=1, sparsity=0.95, scope="global"),
        so.GraNet(total_steps=20, every=1, sparsity=0.95, start=0.0),
        so.ACDC(total_steps=20, sparsity=0.95),
        so.AnnealedTopK(total_steps=20, sparsity=0.95),
        so.DSR(total_steps=20, every=1, drop_fraction=0.5, threshold=10.0),
        so.SNFS(total_steps=20, every=1),
    ],
    ids=lambda method: type(method).__name__,
)
def test_layers_that_share_a_number_leave_weight_norm_what_it_needs(method: so.Method) -> None:
    """Of 1,280 weights 64 are left, 16 of them at least for the 16 norms of the first layer, whose weights are small."""
    model: Any = nn.Sequential(parametrizations.weight_norm(nn.Linear(16, 16)), nn.ReLU(), nn.Linear(16, 64))
    name = "0.parametrizations.weight.original1"
    model.get_parameter(name).data.mul_(1e-3)
    dense = method.starts_at() is not None
    topology = so.sparsify(model, 0.0) if dense else so.sparsify(model, 0.95, distribution={name: 0.9})
    optimizer = so.SparseOpt(torch.optim.SGD(model.parameters(), lr=1e-3), topology, method)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).pow(2).mean().backward()
        optimizer.step()
        assert model[0].weight.isfinite().all()
    assert topology.active() == 64
    assert bool((topology.fan_in(name) > 0).all())


def test_a_parametrisation_that_fills_zeros_is_refused() -> None:
    model: Any = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    parametrizations.orthogonal(model[0])
    before = model[0].weight.detach().clone()
    with pytest.raises(ValueError, match="does not keep zeros"):
        so.sparsify(model, 0.5)
    assert torch.equal(model[0].weight, before)
    assert list(so.sparsify(model, 0.5, exclude="0.*").masks) == ["1.weight"]


def test_pruned_modules_get_the_advice_to_make_it_permanent() -> None:
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 0.5)
    with pytest.raises(ValueError, match=r"'0\.weight' .*prune\.remove\(module, 'weight'\)"):
        so.sparsify(model, 0.9)
    prune.remove(model[0], "weight")
    assert so.sparsify(model, masks="nonzero").sparsity("0.weight") == 0.5


def test_frozen_and_depthwise_weights_stay_dense_unless_named(caplog: pytest.LogCaptureFixture) -> None:
    def make() -> nn.Sequential:
        model = nn.Sequential(
            nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1)
        )
        model[3].requires_grad_(False)
        return model

    with caplog.at_level(logging.WARNING):
        topology = so.sparsify(make(), 0.5)
    assert list(topology.masks) == ["1.weight", "2.weight"]
    assert "1 frozen weight" in caplog.text
    assert "1 depthwise weight" in caplog.text
    why = {each.name: each.why for each in topology.left_dense}
    assert (why["0.weight"], why["3.weight"], why["1.bias"]) == (DEPTHWISE, FROZEN, VECTOR)
    assert set(so.sparsify(make(), 0.5, include="*").masks) == {f"{i}.weight" for i in range(4)}
    mask = torch.eye(4).bool().view(4, 4, 1, 1)
    assert "3.weight" in so.sparsify(make(), masks={"3.weight": mask}).masks


def test_the_summary_ends_with_what_stayed_dense_and_the_whole_model() -> None:
    model = nn.Sequential(
        nn.Embedding(10, 4), nn.Linear(4, 5, bias=False), nn.LayerNorm(5), nn.Linear(5, 2, bias=False)
    )
    topology = so.sparsify(model, 0.5, exclude="3.*")
    lines = topology.summary().splitlines()
    start = lines.index("stayed dense")
    assert EMBEDDING in lines[start + 1]
    assert lines[start + 1].split()[:2] == ["40", "0.weight:"]
    assert EXCLUDED in " ".join(lines)
    assert (
        "whole model: 70 of 80 parameters active, sparsity 0.1250" in lines
    )  # 40 + 10 + 10 dense, 10 of 20 active


def test_neurons_without_inputs_at_the_start_are_told(caplog: pytest.LogCaptureFixture) -> None:
    mask = torch.zeros(4, 4).bool()
    mask[0] = True
    with caplog.at_level(logging.WARNING):
        topology = so.sparsify(nn.Linear(4, 4), masks={"weight": mask})
    assert "3 of 4 neurons" in caplog.text
    assert topology.summary().splitlines()[-1].startswith("3 neurons have no input")


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_a_gate_is_dead_where_neither_the_input_nor_the_state_reaches_it(
    storage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """8 gates of 2 units: 0 to 2 have an input, 2 to 5 one from the state, 6 and 7 neither."""
    from_input, from_state = torch.zeros(8, 3).bool(), torch.zeros(8, 2).bool()
    from_input[:3, 0] = True
    from_state[2:6, 1] = True
    model = nn.Sequential(nn.LSTMCell(3, 2), nn.Linear(2, 4))
    last = torch.tensor([[1, 0], [0, 0], [1, 1], [0, 0]]).bool()
    masks = {"0.weight_ih": from_input, "0.weight_hh": from_state, "1.weight": last}
    with caplog.at_level(logging.WARNING):
        topology = so.sparsify(model, masks=masks, storage=storage)
    assert topology.dead_neurons("0.weight_ih") == topology.dead_neurons("0.weight_hh") == 2
    assert topology.dead_neurons() == 4, "and two of the Linear layer"
    assert "4 of 12 neurons" in caplog.text
    assert topology.summary().splitlines()[-1].startswith("4 neurons have no input")


def test_a_gate_with_dense_weights_of_one_kind_is_not_dead() -> None:
    mask = torch.zeros(6, 3).bool()
    mask[0] = True
    model = nn.Sequential(nn.GRU(3, 2))
    assert so.sparsify(model, masks={"0.weight_ih_l0": mask}, exclude="*_hh_*").dead_neurons() == 0


def batch_normed(model: nn.Module) -> set[str]:
    return set(so.sparsify(model, 0.5).normed)


class Lists(nn.Module):
    """Declared in another order than used."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.dropout = nn.Dropout(0.1)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = norm(self.dropout(layer(x)).flatten(1)).relu()
        return self.layers[2](x)


class Branching(Lists):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv2(self.bn1(self.conv1(x)).relu())


def test_layers_before_batch_norm_are_found_by_declaration_and_by_trace() -> None:
    plain = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    assert batch_normed(plain) == {"0.weight"}
    assert batch_normed(Residual()) == {"conv1.weight"}
    lists = Lists()
    assert batch_normed(lists) == {"layers.0.weight", "layers.1.weight"}
    assert lists.calls == 0, "the model itself is not run"
    assert batch_normed(Branching()) == set(), "neither declared nor traceable: not corrected"
    assert batch_normed(nn.TransformerEncoderLayer(8, 2, 16)) == set()


Wiring = Callable[[Any, torch.Tensor], torch.Tensor]


class Wired(nn.Module):
    """Two convolutions and a BatchNorm of the width given, joined as a function says."""

    def __init__(self, wiring: Wiring, features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.wiring = wiring
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1, bias=bias), nn.Conv2d(3, 4, 3, padding=1, bias=bias)
        self.bn = nn.BatchNorm2d(features)
        self.pool = nn.MaxPool2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wiring(self, x)


WIRINGS: dict[str, tuple[Wiring, int, bool, set[str]]] = {
    "concatenated": (lambda m, x: m.bn(torch.cat([m.a(x), m.b(x)], 1)), 8, True, {"a.weight", "b.weight"}),
    "concatenated along the batch": (lambda m, x: m.bn(torch.cat([m.a(x), m.b(x)])), 4, True, set()),
    "pooled": (lambda m, x: m.bn(m.pool(m.a(x))) + F.avg_pool2d(m.b(x), 3, 2, 1), 4, True, {"a.weight"}),
    "averaged": (lambda m, x: m.bn(F.adaptive_avg_pool2d(m.a(x), 2)) + m.b(x).mean(), 4, True, {"a.weight"}),
    "rectified": (lambda m, x: m.bn(m.a(x).relu()) + m.b(x), 4, False, {"a.weight"}),
    "rectified with a bias": (lambda m, x: m.bn(m.a(x).relu()) + m.b(x), 4, True, set()),
    "summed": (lambda m, x: m.bn(m.a(x) + m.b(x)), 4, False, set()),
    "normalised and added": (lambda m, x: beside(m, m.a(x)) + m.b(x), 4, False, set()),
    "declared before, used elsewhere": (lambda m, x: m.bn(m.a(x)) + m.b(x), 4, True, {"a.weight"}),
    "norm of another dimension": (
        lambda m, x: m.bn(m.a(x).permute(0, 2, 1, 3)) + m.b(x).sum(),
        8,
        True,
        set(),
    ),
    "running statistics": (lambda m, x: by_running(m, m.a(x)) + m.bn(m.b(x)), 4, False, {"b.weight"}),
    "in another order": (lambda m, x: m.bn(m.b(x).view(x.size(0), 4, 8, 8)) + m.a(x), 4, True, {"b.weight"}),
}


def by_running(model: Wired, y: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(y, model.bn.bias.data, model.bn.weight.data)


def beside(model: Wired, y: torch.Tensor) -> torch.Tensor:
    return model.bn(y) + y


def scale_matters(model: Wired, conv: nn.Conv2d) -> bool:
    """Does the output change, but for a constant, if the weights of one neuron are five times as large?"""
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    before = model(x)
    conv.weight.data[1] *= 5
    return not torch.allclose(model(x), before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", WIRINGS)
def test_a_layer_counts_where_batch_norm_takes_the_scale_of_its_neurons_away(name: str) -> None:
    wiring, features, bias, expected = WIRINGS[name]
    assert batch_normed(Wired(wiring, features, bias=bias)) == expected
    for conv in ("a", "b"):
        torch.manual_seed(0)
        model = Wired(wiring, features, bias=bias).double()
        assert scale_matters(model, getattr(model, conv)) == (f"{conv}.weight" not in expected)


def test_tied_layers_count_where_both_are_normalised() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6, bias=False), nn.Linear(4, 6, bias=False)
            self.b.weight = self.a.weight
            self.bn, self.other = nn.BatchNorm1d(6), nn.BatchNorm1d(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bn(self.a(x)) + self.also(self.b(x))

        def also(self, y: torch.Tensor) -> torch.Tensor:
            return y

    class Both(Tied):
        def also(self, y: torch.Tensor) -> torch.Tensor:
            return self.other(y)

    assert batch_normed(Tied()) == set()
    assert batch_normed(Both()) == {"a.weight"}


class OwnNorm(nn.BatchNorm2d):
    """Python of its own, which torch.fx cannot follow."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        assert input.ndim == 4, f"expected 4 dimensions, got {input.ndim}"
        return super().forward(input).relu()


def test_of_a_network_that_cannot_be_traced_the_parts_are() -> None:
    seen: list[Any] = []

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.other, self.bn = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), OwnNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bn(self.conv(x)) + self.other(x)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.stem, self.bn = Part(), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.bn(self.stem(x))
            return self.part(x if x.sum() > 0 else -x)

    model = Whole()
    for module in model.modules():
        module.register_forward_hook(lambda *values: seen.append(values))
    drawn = torch.get_rng_state()
    assert batch_normed(model) == {"part.conv.weight", "stem.weight"}
    assert not seen, "hooks are not called"
    assert torch.equal(torch.get_rng_state(), drawn)


def test_by_default_only_those_are_corrected(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(
        nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 20), nn.LayerNorm(20)
    )
    topology = so.sparsify(model, 0.8)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.INFO, logger="sparseopt"):
        optimizer = so.SparseOpt(sgd, topology, so.Static())
    assert set(optimizer.factors) == {"0.weight"}
    assert torch.equal(optimizer.factors["0.weight"], so.skew_factors(topology)["0.weight"].float())
    assert "1 of 2 layers" in caplog.text
    assert "not in 3.weight" in caplog.text
    del optimizer
    everywhere = so.SparseOpt(sgd, topology, so.Static(), correction="layer")
    assert set(everywhere.factors) == {"0.weight", "3.weight"}
