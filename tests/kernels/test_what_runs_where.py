"""Accelerated models say what runs where, and give what the dense model gives whoever wrote the weights."""

import copy
import inspect
import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import sparseopt as so


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 4))


def cnn(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.Flatten(),
        nn.Linear(8 * 16, 4),
    )


INPUTS: dict[Callable[[int], nn.Sequential], Tensor] = {mlp: torch.randn(6, 20), cnn: torch.randn(6, 3, 8, 8)}


def loaded(model: nn.Module, make: Callable[[int], nn.Module]) -> None:
    model.load_state_dict(make(7).state_dict())


def written_through_data(model: nn.Module, make: Callable[[int], nn.Module]) -> None:
    for mine, other in zip(model.parameters(), make(7).parameters(), strict=True):
        mine.data.copy_(other.data)


def given_other_data(model: nn.Module, make: Callable[[int], nn.Module]) -> None:
    for mine, other in zip(model.parameters(), make(7).parameters(), strict=True):
        mine.data = other.data


def one_weight(model: nn.Module, make: Callable[[int], nn.Module]) -> None:
    with torch.no_grad():
        for mine in model.parameters():
            if mine.dim() > 1:
                mine.view(-1)[(mine.view(-1) == 0).nonzero()[0]] = 1e-3


@pytest.mark.parametrize("make", INPUTS)
@pytest.mark.parametrize("write", [loaded, written_through_data, given_other_data, one_weight])
@pytest.mark.parametrize("first", [True, False])
def test_weights_outside_the_masks_count(
    make: Callable[[int], nn.Sequential],
    write: Callable[..., None],
    first: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after `load_state_dict` of a dense model's weights: the output is the dense network's, and the log says what to do."""
    model = make(0)
    topology = so.sparsify(model, 0.9, distribution="uniform")
    if first:
        write(model, make)
    so.accelerate(model, topology)
    x = INPUTS[make]
    if not first:
        model(x)
        write(model, make)
    dense = copy.deepcopy(model)
    torch.testing.assert_close(model(x), dense(x))
    assert "topology.apply()" in caplog.text
    for each in (model, dense):
        each(x).square().sum().backward()
    for mine, its in zip(model.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-4, atol=1e-5)
    topology.apply()
    caplog.clear()
    torch.testing.assert_close(model(x), copy.deepcopy(model)(x))
    assert not caplog.text


def test_an_averaged_model_with_the_topology_of_its_own_is_accelerated() -> None:
    model = mlp()
    topology = so.sparsify(model, 0.9)
    averaged = AveragedModel(model)
    averaged.update_parameters(mlp(3))
    averaged.update_parameters(mlp(4))
    masks = {
        name: each.abs() > each.abs().median()
        for name, each in averaged.module.named_parameters()
        if each.dim() > 1
    }
    of_average = so.sparsify(averaged.module, 0.5, masks=masks)
    so.accelerate(averaged, of_average)
    assert so.kernels.accelerated_layers(averaged) == ("0", "2", "4")
    torch.testing.assert_close(averaged(INPUTS[mlp]), copy.deepcopy(averaged)(INPUTS[mlp]))
    assert topology.sparsity() > 0.8


def test_a_part_of_a_sparse_model() -> None:
    model = nn.Sequential(mlp(), nn.Tanh(), nn.Linear(4, 40))
    topology = so.sparsify(model, 0.9, distribution="uniform")
    part = model[0]
    so.accelerate(part, topology)
    assert so.kernels.accelerated_layers(part) == ("0.0", "0.2", "0.4")
    torch.testing.assert_close(part(INPUTS[mlp]), copy.deepcopy(part)(INPUTS[mlp]))
    last = model[2]
    so.accelerate(last, topology)
    assert so.kernels.accelerated_layers(last) == ("2",)
    x = torch.randn(3, 5, 4)
    torch.testing.assert_close(last(x), copy.deepcopy(last)(x))


def test_a_whole_with_a_sparse_part() -> None:
    """Names that the model has in common with the topology of a part mean other layers."""
    part = mlp()
    topology = so.sparsify(part, 0.9, distribution="uniform")
    model = nn.Sequential(nn.Linear(20, 20), nn.Tanh(), part)
    so.accelerate(model, topology)
    assert so.kernels.accelerated_layers(model) == ("0", "2", "4")
    assert "2.0  Linear  sparse" in so.kernels.summary(model)
    assert "\n0    Linear  dense" in "\n" + so.kernels.summary(model)
    torch.testing.assert_close(model(INPUTS[mlp]), copy.deepcopy(model)(INPUTS[mlp]))


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.first, self.shared, self.hooked, self.unused = (nn.Linear(16, 16) for _ in range(4))
        self.one, self.strided = nn.Conv1d(16, 16, 1), nn.Conv2d(16, 16, 1, stride=3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.attention(x, x, x)
        y = torch.tanh(self.first(y))
        y = self.shared(torch.tanh(self.shared(y)))
        y = torch.tanh(self.hooked(y))
        y = self.one(y.transpose(1, 2))
        return self.strided(y[..., None])


def test_every_layer_is_listed_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    model = Everything()
    model.hooked.register_forward_hook(lambda *_: None)
    topology = so.sparsify(model, 0.9, distribution="uniform")
    with caplog.at_level(logging.INFO):
        so.accelerate(model, topology)
    rows = {line.split()[0]: line for line in so.kernels.summary(model).splitlines()}
    assert rows["first"].endswith("sparse")
    reasons = {
        "attention": "not MultiheadAttention",
        "attention.out_proj": "MultiheadAttention computes with its weights itself",
        "shared": "called 2 times",
        "hooked": "hooks",
        "unused": "does not call",
        "one": "not Conv1d",
        "strided": "stride=(3, 3)",
    }
    assert set(rows) == {"first", *reasons}
    for name, reason in reasons.items():
        assert "dense: " in rows[name]
        assert reason in rows[name]
        assert rows[name] in caplog.text
    x = torch.randn(3, 5, 16)
    torch.testing.assert_close(model(x), copy.deepcopy(model)(x))


class Attention(nn.Module):
    """What torch.fx cannot follow: shapes decide, configuration objects are read, modules are called by keyword."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.config = {"heads": 4}
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if x.shape[1] > 512:
            raise ValueError("too long")
        parts = [
            layer(x).unflatten(-1, (self.config["heads"], -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        scores = parts[0] @ parts[1].transpose(2, 3)
        if mask is not None:
            scores = scores + mask
        return self.out((scores.softmax(-1) @ parts[2]).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm = Attention(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(x, mask=mask)
        return x + self.down(torch.relu(self.up(self.norm(input=x))))


def test_a_transformer_that_cannot_be_traced_runs_layer_by_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(16) for _ in range(2)))
    topology = so.sparsify(model, 0.9, distribution="uniform")
    dense = copy.deepcopy(model)
    so.accelerate(model, topology)
    assert set(so.kernels.accelerated_layers(model)) == {
        name.removesuffix(".weight") for name in topology.masks
    }
    x = torch.randn(2, 7, 16)
    for each in (model, dense):
        each(x).square().sum().backward()
    torch.testing.assert_close(model(x), dense(x))
    for (name, mine), its in zip(model.named_parameters(), dense.parameters(), strict=True):
        assert mine.grad is not None
        assert its.grad is not None
        mask = topology.masks.get(name, torch.tensor(True))
        torch.testing.assert_close(mine.grad * mask, its.grad * mask, rtol=1e-4, atol=1e-5, msg=name)
    copied = copy.deepcopy(model)
    assert not so.kernels.accelerated_layers(copied)
    so.accelerate(copied, so.sparsify(copied, 0.5, masks="nonzero"))
    assert so.kernels.accelerated_layers(copied)


def test_torch_s_own_transformer() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 64, dropout=0.0, batch_first=True)
    topology = so.sparsify(model, 0.9, distribution="uniform")
    dense = copy.deepcopy(model)
    so.accelerate(model, topology)
    assert set(so.kernels.accelerated_layers(model)) == {"linear1", "linear2"}
    x = torch.randn(2, 7, 16)
    torch.testing.assert_close(model(x), dense(x))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), dense.eval()(x))


def test_a_sequence_with_a_hook_is_accelerated_and_the_hook_called() -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.Tanh(), mlp())
    topology = so.sparsify(model, 0.9, distribution="uniform")
    seen: list[int] = []
    model[2].register_forward_hook(lambda *_: seen.append(1))
    so.accelerate(model, topology)
    assert so.kernels.accelerated_layers(model) == ("0", "2.0", "2.2", "2.4")
    torch.testing.assert_close(model(INPUTS[mlp]), copy.deepcopy(model)(INPUTS[mlp]))
    assert seen == [1, 1]


def test_the_signature_is_the_class_s() -> None:
    """Trainers look at it to choose what they pass."""
    model = Block(16)
    so.accelerate(model, so.sparsify(model, 0.9))
    plain = nn.Sequential(mlp())
    before = inspect.signature(plain.forward)
    so.accelerate(plain, so.sparsify(plain, 0.9))
    assert list(inspect.signature(model.forward).parameters) == ["x", "mask"]
    assert inspect.signature(plain.forward) == before


@pytest.mark.skipif(torch.__version__ < "2.7", reason="torch 2.6 exports no module whose forward is replaced")
def test_export_gives_the_dense_network() -> None:
    model = mlp().eval()
    so.accelerate(model, so.sparsify(model, 0.9, distribution="uniform"))
    x = INPUTS[mlp]
    exported = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), copy.deepcopy(model)(x))


def test_the_dense_gradient_is_there_in_evaluation_mode() -> None:
    """Fine-tuning with frozen batch norm: the method that reads the dense gradient gets it whatever the mode."""
    model = cnn().eval()
    topology = so.sparsify(model, 0.9, distribution="uniform")
    optimizer = so.SparseOpt(
        torch.optim.SGD(model.parameters(), lr=0.1), topology, so.RigL(total_steps=100, every=1)
    )
    so.accelerate(model, topology)
    model(INPUTS[cnn]).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model(INPUTS[cnn]).square().sum().backward()
    for name, parameter in topology.parameters.items():
        assert parameter.grad is not None
        assert bool(parameter.grad[~topology.masks[name]].any()), name


def test_the_summary_says_when_torch_computes_an_encoder_layer_itself() -> None:
    model = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    topology = so.sparsify(model, 0.9)
    model = so.accelerate(model, topology)
    (line,) = (each for each in so.kernels.summary(model).splitlines() if each.startswith("linear1"))
    assert "sparse" in line
    assert "evaluation" in line


def test_a_dense_layer_among_sparse_ones_is_told_apart() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 3)
    )
    so.accelerate(model, so.sparsify(model, 0.95, exclude="2.weight"))
    rows = [line.split(maxsplit=2)[2] for line in so.kernels.summary(model).splitlines()]
    assert rows == ["sparse", "on the kernels with the others, not sparse", "sparse"]


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Conv1d(8, 8, 3), "not Conv1d"),
        (nn.Conv2d(3, 64, 4, stride=4), "stride"),
    ],
)
def test_a_model_that_gains_nothing_keeps_its_reasons(layer: nn.Module, reason: str) -> None:
    model = nn.Sequential(layer)
    so.accelerate(model, so.sparsify(model, 0.9))
    assert reason in so.kernels.summary(model)
    so.kernels.restore(model)
    assert so.kernels.summary(model).endswith("dense: the model is not accelerated")
