"""torch.compile, of the model and of the step: masks move, nothing is compiled again, and the result is the eager one."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import sparseopt as so

STEPS = 24

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:`torch.jit:DeprecationWarning"
    ),  # torch's compiler uses what torch deprecates
]


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def build() -> tuple[nn.Module, so.SparseOpt]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)).double()
    topology = so.sparsify(model, 0.7)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, so.SparseOpt(sgd, topology, so.RigL(total_steps=STEPS, every=4))


def train(
    model: Callable[..., torch.Tensor], optimizer: so.SparseOpt, step_function: Callable[[], object]
) -> None:
    for step in range(STEPS):
        draw = so.topology.generator(0, "batch", step)
        inputs, labels = torch.randn(16, 12, generator=draw).double(), torch.randint(4, (16,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        step_function()


@pytest.fixture
def eager() -> tuple[nn.Module, so.SparseOpt]:
    model, optimizer = build()
    train(model, optimizer, optimizer.step)
    return model, optimizer


def test_a_compiled_model_trains_as_the_eager_one(
    eager: tuple[nn.Module, so.SparseOpt],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
    assert_same_topology: Callable[[so.Topology, so.Topology], None],
) -> None:
    model, optimizer = build()
    compiled = torch.compile(model, fullgraph=True)
    train(compiled, optimizer, optimizer.step)
    assert_exactly_sparse(optimizer)
    assert_same_topology(eager[1].topology, optimizer.topology)
    torch.testing.assert_close(model.state_dict(), eager[0].state_dict(), rtol=1e-9, atol=1e-12)


def whole_step(optimizer: so.SparseOpt) -> Callable[[], object]:
    """What a user compiles who does not know better: SparseOpt keeps its own part out of the compiler."""
    return torch.compile(optimizer.step, backend="aot_eager")


def base_step(optimizer: so.SparseOpt) -> Callable[[], object]:
    optimizer.base.step = torch.compile(optimizer.base.step, backend="aot_eager")
    return optimizer.step


@pytest.mark.parametrize("compiled", [whole_step, base_step])
def test_a_compiled_step_is_the_eager_one(
    compiled: Callable[[so.SparseOpt], Callable[[], object]],
    eager: tuple[nn.Module, so.SparseOpt],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
    assert_same_topology: Callable[[so.Topology, so.Topology], None],
) -> None:
    model, optimizer = build()
    train(model, optimizer, compiled(optimizer))
    assert optimizer.steps == STEPS
    assert_exactly_sparse(optimizer)
    assert_same_topology(eager[1].topology, optimizer.topology)
    torch.testing.assert_close(model.state_dict(), eager[0].state_dict(), rtol=1e-9, atol=1e-12)
