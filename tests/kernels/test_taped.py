"""Steps that repeat the step before make its calls again: the numbers are those of a model that has never taken a step."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so
from sparseopt.kernels.conv.taped import TapedRun
from sparseopt.lab.models.resnet_cifar import CifarResNet, Shortcut


class Network(nn.Module):
    """Two inputs' worth of what a region can be: a residual sum, a stride, two outputs."""

    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.third = nn.Conv2d(8, 6, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8, momentum=momentum)
        self.norm2 = nn.BatchNorm2d(8, momentum=momentum)
        self.norm3 = nn.BatchNorm2d(6, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.first(x)).relu()
        x = (self.norm2(self.second(x)) + x).relu()
        y = self.norm3(self.third(x)).relu()
        return torch.cat([y.mean((2, 3)), x.mean((2, 3))], 1)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every backward pass, whether it was one of calls that had been written down."""
    seen: list[bool] = []
    backward = TapedRun.backward

    def watched(self: TapedRun, *given: object) -> object:
        before = self._tape
        found = backward(self, *given)  # pyright: ignore[reportArgumentType]
        seen.append(before is not None and self._tape is before)
        return found

    monkeypatch.setattr(TapedRun, "backward", watched)
    return seen


def accelerated(storage: str, **options: float | None) -> tuple[Network, so.Topology]:
    torch.manual_seed(0)
    model = Network(**options)
    topology = so.sparsify(model, 0.8, storage=storage)  # pyright: ignore[reportArgumentType]
    assert so.accelerate(model, topology) is model
    return model, topology


def step(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    assert x.grad is not None
    found = {"y": y.detach(), "x": x.grad}
    found |= {f"grad {name}": each.grad for name, each in model.named_parameters() if each.grad is not None}
    return found | {name: each.clone() for name, each in model.named_buffers()}


def fresh(model: Network, topology: so.Topology) -> Network:
    """A copy that has never taken a step, on the kernels."""
    other = Network(model.norm1.momentum)
    other.norm3.eps = model.norm3.eps
    other.load_state_dict(model.state_dict())
    masks = {name: mask.clone() for name, mask in topology.masks.items()}
    return so.accelerate(other, so.sparsify(other, topology.sparsity(), masks=masks))


def assert_same_step(model: Network, topology: so.Topology, x: Tensor) -> dict[str, Tensor]:
    """Weights of packed storage have other names and shapes: all else is compared."""
    expected = step(fresh(model, topology), x)
    found = step(model, x)
    for name, value in found.items():
        if name in expected:
            assert torch.equal(value, expected[name]), name
    assert len(set(found) & set(expected)) > 10
    for name, mask in topology.masks.items():
        gradient = topology.parameters[name].grad
        assert gradient is not None
        active = gradient.view(-1) if topology.packed(name) is not None else gradient[mask]
        assert torch.equal(active, expected[f"grad {name}"][mask]), name
    return found


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_steps_that_repeat_give_the_bits_of_a_first_step(storage: str, replays: list[bool]) -> None:
    model, topology = accelerated(storage)
    kept = []
    for seed in range(5):
        torch.manual_seed(seed)
        kept.append(assert_same_step(model, topology, torch.randn(9, 3, 12, 10)))
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.01 * parameter.grad)
    assert replays[-1]
    assert model.norm1.num_batches_tracked == 5
    assert len({each["grad first.weight" if storage == "dense" else "x"].data_ptr() for each in kept}) == 5


@pytest.mark.parametrize("shortcut", ["convolution", "projection", "padding"])
def test_the_networks_of_the_lab_repeat_their_steps(shortcut: Shortcut, replays: list[bool]) -> None:
    torch.manual_seed(0)
    model = CifarResNet(20, 10, shortcut=shortcut)
    so.accelerate(model, so.sparsify(model, 0.9, storage="packed"))
    for _ in range(6):
        model(torch.randn(16, 3, 32, 32)).sum().backward()
    assert replays[-1]


def _evaluate(model: Network, _: so.Topology) -> None:
    model.eval()
    with torch.no_grad():
        model(torch.randn(3, 3, 12, 10))
    model.train()


def _other_size(model: Network, _: so.Topology) -> None:
    step(model, torch.randn(4, 3, 8, 14))


def _other_memory(model: Network, _: so.Topology) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _other_statistics(model: Network, _: so.Topology) -> None:
    model.norm2.running_mean = torch.ones(8)
    model.norm3.eps = 0.1


def _two_at_once(model: Network, _: so.Topology) -> None:
    first, second = model(torch.randn(9, 3, 12, 10)), model(torch.randn(9, 3, 12, 10))
    first.sum().backward()
    second.sum().backward()


def _never_back(model: Network, _: so.Topology) -> None:
    model(torch.randn(9, 3, 12, 10))


def _no_input_gradient(model: Network, _: so.Topology) -> None:
    model(torch.randn(9, 3, 12, 10)).sum().backward()


def _dense_gradient(model: Network, topology: so.Topology) -> None:
    topology.dense_grads.wanted = True
    step(model, torch.randn(9, 3, 12, 10))
    topology.dense_grads.wanted = False
    topology.dense_grads.forget()


@pytest.mark.parametrize("storage", ["dense", "packed"])
@pytest.mark.parametrize(
    "meanwhile",
    [
        *(_evaluate, _other_size, _other_memory, _other_statistics, _two_at_once),
        *(_never_back, _no_input_gradient, _dense_gradient),
    ],
)
def test_whatever_happens_between_two_steps(
    meanwhile: Callable[[Network, so.Topology], None], storage: str, replays: list[bool]
) -> None:
    model, topology = accelerated(storage)
    x = torch.randn(9, 3, 12, 10)
    for _ in range(4):
        step(model, x)
    assert replays[-1]
    meanwhile(model, topology)
    for _ in range(3):
        assert_same_step(model, topology, torch.randn(9, 3, 12, 10))


def test_a_cumulative_average_is_never_repeated(replays: list[bool]) -> None:
    model, topology = accelerated("dense", momentum=None)
    for _ in range(4):
        assert_same_step(model, topology, torch.randn(9, 3, 12, 10))
    assert not any(replays)


def test_two_passes_at_once_are_right() -> None:
    model, topology = accelerated("dense")
    images = [torch.randn(9, 3, 12, 10) for _ in range(2)]
    for _ in range(4):
        state = copy.deepcopy(model.state_dict())
        model.zero_grad()
        outputs = [model(x) for x in images]
        for y in outputs:
            y.square().sum().backward()
        found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
        model.load_state_dict(state)
        other = fresh(model, topology)
        for x in images:
            other(x).square().sum().backward()
        for name, each in other.named_parameters():
            assert each.grad is not None
            mask = topology.masks.get(name, torch.ones_like(each, dtype=torch.bool))
            torch.testing.assert_close(found[name][mask], each.grad[mask], rtol=0, atol=0)


def test_a_region_without_batch_norm_is_made_again() -> None:
    torch.manual_seed(0)
    convs = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
    model = nn.Sequential(*(each for conv in convs for each in (conv, nn.ReLU())))
    topology = so.sparsify(model, 0.8)
    dense, x = copy.deepcopy(model), torch.randn(8, 16, 8, 8)
    so.accelerate(model, topology)
    for _ in range(5):
        for each in (model, dense):
            each.zero_grad()
            each(x).square().sum().backward()
        for (name, mine), its in zip(model.named_parameters(), dense.parameters(), strict=True):
            assert mine.grad is not None
            assert its.grad is not None
            mask = topology.masks[name]
            torch.testing.assert_close(mine.grad * mask, its.grad * mask, rtol=1e-4, atol=1e-4)
