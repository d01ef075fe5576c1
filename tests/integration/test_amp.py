"""Automatic mixed precision moves the same weights and connections as full precision, where the arithmetic is exact.

The layer's loss is linear and its inputs are small whole numbers: every gradient is a whole number that bfloat16 and float16 hold
exactly. Whatever differs from the run in float32 is then not rounding but the optimizer's fault.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import sparseopt as so

STEPS = 40
INPUTS, NEURONS, BATCH = 24, 16, 4


@pytest.fixture
def linear_loss(whole_numbers: Callable[..., Tensor]) -> Callable[[nn.Module, int], Tensor]:
    """A loss whose gradient is the product of two matrices of whole numbers, different at every step."""

    def loss(model: nn.Module, step: int) -> Tensor:
        weight = next(model.parameters())
        inputs, direction = (
            whole_numbers(BATCH, width, key=f"{what} {step}").to(weight.device)
            for what, width in (("inputs", INPUTS), ("direction", NEURONS))
        )
        return (model(inputs) * direction).sum()

    return loss


def build(device: torch.device, method: so.Method) -> tuple[nn.Module, so.SparseOpt]:
    torch.manual_seed(0)
    model = nn.Linear(INPUTS, NEURONS, bias=False).to(device)
    topology = so.sparsify(model, 0.6)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    return model, so.SparseOpt(sgd, topology, method, correction="layer")


METHODS = [
    so.Static(),
    so.SET(total_steps=STEPS, every=5),
    so.RigL(total_steps=STEPS, every=5),
    so.RigL(total_steps=STEPS, every=5, grow_from="corrected"),
]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_bfloat16_is_the_run_in_float32(
    device: torch.device,
    method: so.Method,
    linear_loss: Callable[[nn.Module, int], Tensor],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
    assert_same_topology: Callable[[so.Topology, so.Topology], None],
) -> None:
    runs = []
    for enabled in (False, True):
        model, optimizer = build(device, method)
        for step in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
                loss = linear_loss(model, step)
            loss.backward()
            optimizer.step()
        runs.append((model, optimizer))
    (full, reference), (half, optimizer) = runs
    assert_exactly_sparse(optimizer)
    assert_same_topology(reference.topology, optimizer.topology)
    torch.testing.assert_close(half.state_dict(), full.state_dict(), rtol=0, atol=0)
    assert optimizer.factors["weight"].dtype == torch.float32


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_float16_with_a_scaler_is_the_run_in_float32(
    device: torch.device,
    method: so.Method,
    linear_loss: Callable[[nn.Module, int], Tensor],
    assert_exactly_sparse: Callable[[so.SparseOpt], None],
    assert_same_topology: Callable[[so.Topology, so.Topology], None],
) -> None:
    """The scaler starts too high for float16, so its first steps are skipped: they count for nothing and nobody."""
    full, reference = build(device, method)
    half, optimizer = build(device, method)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**20)
    skipped = 0
    while optimizer.steps < STEPS:
        step = optimizer.steps
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.float16):
            loss = linear_loss(half, step)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if optimizer.steps == step:
            skipped += 1
            continue
        reference.zero_grad()
        linear_loss(full, step).backward()
        reference.step()
    assert skipped >= 5
    assert_exactly_sparse(optimizer)
    assert_same_topology(reference.topology, optimizer.topology)
    torch.testing.assert_close(half.state_dict(), full.state_dict(), rtol=0, atol=0)


def test_weights_held_in_bfloat16_stay_exactly_sparse(
    device: torch.device, assert_exactly_sparse: Callable[[so.SparseOpt], None]
) -> None:
    """Without a master copy in float32: masks and counts hold, and the factors are still in full precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    model = model.to(device, torch.bfloat16)
    topology = so.sparsify(model, 0.7)
    first = copy.deepcopy(topology.masks)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer = so.SparseOpt(adam, topology, so.RigL(total_steps=STEPS, every=5))
    inputs, labels = (
        torch.randn(64, 12, device=device, dtype=torch.bfloat16),
        torch.arange(64, device=device) % 4,
    )
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).float(), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert any(not torch.equal(first[name], mask) for name, mask in topology.masks.items())
    assert all(factor.dtype == torch.float32 for factor in optimizer.factors.values())
    assert_exactly_sparse(optimizer)
