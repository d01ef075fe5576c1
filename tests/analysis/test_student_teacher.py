"""Student and teacher: the written-out gradients, the conserved quantities, and what sign flips need."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparseopt as so
from sparseopt.analysis.invariants import invariant
from sparseopt.analysis.student_teacher import Descent, Neurons, Task, Trajectory, gradients, make_task, train

RUNS = 12


def _task(draw: torch.Generator) -> Task:
    teacher = torch.randn(RUNS, 10, generator=draw, dtype=torch.float64)
    teacher[:, 2:] = 0
    return make_task(teacher, torch.randn(RUNS, 200, 10, generator=draw, dtype=torch.float64))


def _student(draw: torch.Generator, neurons: int = 1) -> Neurons:
    ones = torch.ones(RUNS, neurons, dtype=torch.float64)
    w = torch.randn(RUNS, neurons, 10, generator=draw, dtype=torch.float64)
    return Neurons(w, -ones, ones, torch.zeros_like(ones))


def _right_inputs() -> Tensor:
    mask = torch.zeros(1, 10, dtype=torch.float64)
    mask[0, :2] = 1
    return mask


def _run(lr: float, time: float, alpha: float = 0.0, scale: float = 1.0) -> Trajectory:
    draw = torch.Generator().manual_seed(3)
    task, student = _task(draw), _student(draw)
    factors = torch.tensor([scale], dtype=torch.float64)
    return train(student, _right_inputs(), task, Descent(lr, round(time / lr), factors, alpha))


def _drift(trajectory: Trajectory, alpha: float) -> float:
    values = invariant(trajectory.a, trajectory.gamma, trajectory.beta, alpha)
    return float((values - values[0]).abs().amax(dim=0).median())


def test_written_out_gradients_are_what_autograd_computes() -> None:
    draw = torch.Generator().manual_seed(0)
    task, student = _task(draw), _student(draw, neurons=2)
    student = Neurons(*(p + 0.1 * torch.randn(p.shape, generator=draw, dtype=p.dtype) for p in student))
    leaves = Neurons(*(p.clone().requires_grad_() for p in student))
    output = torch.zeros_like(task.targets)
    for k in range(2):
        x = torch.einsum("rd,rsd->sr", leaves.w[:, k], task.inputs)
        normalised = F.batch_norm(x, None, None, training=True).T
        hidden = torch.relu(leaves.gamma[:, k, None] * normalised + leaves.beta[:, k, None])
        output = output + leaves.a[:, k, None] * hidden
    losses = ((output - task.targets) ** 2).mean(dim=1) / 2
    losses.sum().backward()
    loss, grad = gradients(student, task)
    torch.testing.assert_close(loss, losses.detach(), rtol=1e-11, atol=1e-13)
    for leaf, written in zip(leaves, grad, strict=True):
        torch.testing.assert_close(written, leaf.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 4.0])
@pytest.mark.parametrize("scale", [1.0, 0.2**0.5])
def test_invariants_are_conserved_for_small_rates_and_drift_in_proportion_to_the_rate(
    alpha: float, scale: float
) -> None:
    coarse, fine = (_drift(_run(lr, time=1.0, alpha=alpha, scale=scale), alpha) for lr in (4e-3, 1e-3))
    assert fine < 1e-3
    assert coarse / fine == pytest.approx(4, rel=0.15)


def test_gradient_descent_never_flips_the_sign_and_ham_flips_it_for_most_seeds() -> None:
    for scale in (1.0, 0.2**0.5):
        descended = _run(0.1, time=60.0, scale=scale)
        hyperbolic = _run(0.1, time=60.0, alpha=4.0, scale=scale)
        assert (descended.a < 0).all()
        assert int((hyperbolic.a[-1] > 0).sum()) > RUNS // 2


def test_training_leaves_the_student_alone_and_records_both_ends() -> None:
    draw = torch.Generator().manual_seed(1)
    task, student = _task(draw), _student(draw)
    before = student.w.clone()
    descent = Descent(0.1, 25, torch.ones(1, dtype=torch.float64))
    trajectory = train(student, _right_inputs(), task, descent, record_every=10)
    assert trajectory.iteration.tolist() == [0, 10, 20, 25]
    assert trajectory.a.shape == (4, RUNS, 1)
    torch.testing.assert_close(student.w, before, rtol=0, atol=0)
    torch.testing.assert_close(trajectory.a[0], student.a, rtol=0, atol=0)


def test_scale_slows_the_incoming_weights_and_nothing_else_at_first_step() -> None:
    plain, scaled = (_run(0.1, time=0.1, scale=scale) for scale in (1.0, 0.5))
    torch.testing.assert_close(plain.a, scaled.a, rtol=0, atol=0)
    torch.testing.assert_close(plain.gamma, scaled.gamma, rtol=0, atol=0)
    assert not torch.equal(plain.loss[-1], scaled.loss[-1])


def test_ham_here_is_the_ham_that_trains_networks() -> None:
    draw = torch.Generator().manual_seed(4)
    task, student = _task(draw), _student(draw)
    everywhere = torch.ones(1, 10, dtype=torch.float64)
    trajectory = train(
        student, everywhere, task, Descent(0.1, 3, torch.ones(1, dtype=torch.float64), alpha=4.0)
    )
    leaves = [
        student.w.clone(),
        student.a.clone(),
        student.gamma.flatten().clone(),
        student.beta.flatten().clone(),
    ]
    optimizer = so.HAM(torch.optim.SGD([nn.Parameter(leaf) for leaf in leaves], lr=0.1), alpha=4.0)
    w, a, gamma, beta = optimizer.param_groups[0]["params"]
    for _ in range(3):
        state = Neurons(w.detach(), a.detach(), gamma.detach().view(RUNS, 1), beta.detach().view(RUNS, 1))
        _, grad = gradients(state, task)
        w.grad, a.grad, gamma.grad, beta.grad = grad.w, grad.a, grad.gamma.flatten(), grad.beta.flatten()
        optimizer.step()
    torch.testing.assert_close(trajectory.a[-1], a.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(trajectory.gamma[-1].flatten(), gamma.detach(), rtol=1e-12, atol=1e-12)
