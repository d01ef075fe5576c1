"""Student and teacher: how one or two masked neurons with BatchNorm learn, and whether they find the right sign.

Teacher and students compute sum_k a_k relu(gamma_k x̂_k + beta_k) with x̂_k = BN(w_k . z) over all samples. The teacher has one
neuron that reads a few of the inputs. Training is full-batch descent on L = sum_j (target_j - output_j)^2 / (2 samples), with
the gradients written out, so that many runs (seeds, initialisations) advance side by side: tensors carry a leading axis of runs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sparseopt.analysis.batch_norm import normalise, normalise_backward


class Task(NamedTuple):
    """Inputs z (runs, samples, dimension) and the teacher's outputs on them (runs, samples)."""

    inputs: Tensor
    targets: Tensor


class Neurons(NamedTuple):
    """The parameters of the neurons: w (runs, neurons, dimension); a, gamma, beta (runs, neurons)."""

    w: Tensor
    a: Tensor
    gamma: Tensor
    beta: Tensor


@dataclass(frozen=True)
class Descent:
    """How the student moves: w, a by gradient descent and then HAM's multiplicative step (alpha = 0: none).

    `scale` holds one factor a neuron for the gradient of its incoming weights: D = sqrt(1 - s_k) for the skew
    correction, ones for plain descent.
    """

    lr: float
    iterations: int
    scale: Tensor
    alpha: float = 0.0


class Trajectory(NamedTuple):
    """What a training recorded, over the leading axis of recorded iterations."""

    iteration: Tensor
    loss: Tensor
    a: Tensor
    gamma: Tensor
    beta: Tensor


def forward(neurons: Neurons, inputs: Tensor) -> Tensor:
    """Outputs (runs, samples)."""
    return _layers(neurons, inputs).output


def make_task(teacher_w: Tensor, inputs: Tensor) -> Task:
    """The teacher with incoming weights `teacher_w` (runs, dimension), a = gamma = 1, beta = 0, on the inputs."""
    ones = torch.ones_like(teacher_w[:, :1])
    teacher = Neurons(teacher_w.unsqueeze(1), ones, ones, torch.zeros_like(ones))
    return Task(inputs, forward(teacher, inputs))


def gradients(neurons: Neurons, task: Task) -> tuple[Tensor, Neurons]:
    """The loss of every run, and its gradient with respect to every parameter."""
    layers = _layers(neurons, task.inputs)
    residual = layers.output - task.targets
    loss = residual.square().mean(dim=1) / 2
    at_output = (residual / residual.shape[1]).unsqueeze(1)
    at_norm = at_output * neurons.a.unsqueeze(2) * (layers.hidden > 0)
    at_input = normalise_backward(at_norm * neurons.gamma.unsqueeze(2), layers.normalised, layers.sigma)
    return loss, Neurons(
        w=at_input @ task.inputs,
        a=(at_output * layers.hidden).sum(dim=2),
        gamma=(at_norm * layers.normalised).sum(dim=2),
        beta=at_norm.sum(dim=2),
    )


def train(
    student: Neurons, mask: Tensor, task: Task, descent: Descent, *, record_every: int = 1
) -> Trajectory:
    """Train the student whose neurons see only the inputs in `mask` (neurons, dimension); its tensors are not changed.

    The first record is the initialisation, the last the state after the last iteration.
    """
    w, a, gamma, beta = (tensor.clone() for tensor in student)
    w *= mask
    scale = descent.scale.unsqueeze(1) * mask
    records: list[tuple[Tensor, ...]] = []
    kept: list[int] = []
    for iteration in range(descent.iterations + 1):
        loss, grad = gradients(Neurons(w, a, gamma, beta), task)
        if iteration % record_every == 0 or iteration == descent.iterations:
            kept.append(iteration)
            records.append((loss, a.clone(), gamma.clone(), beta.clone()))
        if iteration < descent.iterations:
            _weight_step(w, grad.w * scale, descent)
            _weight_step(a, grad.a, descent)
            gamma -= descent.lr * grad.gamma
            beta -= descent.lr * grad.beta
    return Trajectory(torch.tensor(kept), *(torch.stack(series) for series in zip(*records, strict=True)))


class _Layers(NamedTuple):
    normalised: Tensor  # x̂ (runs, neurons, samples)
    sigma: Tensor
    hidden: Tensor  # relu(gamma x̂ + beta)
    output: Tensor


def _layers(neurons: Neurons, inputs: Tensor) -> _Layers:
    normalised, sigma = normalise(neurons.w @ inputs.mT)
    hidden = (neurons.gamma.unsqueeze(2) * normalised + neurons.beta.unsqueeze(2)).relu()
    return _Layers(normalised, sigma, hidden, (neurons.a.unsqueeze(2) * hidden).sum(dim=1))


def _weight_step(weight: Tensor, grad: Tensor, descent: Descent) -> None:
    """Gradient descent, then HAM: w <- w exp(-lr alpha sign(w) grad), in place."""
    weight -= descent.lr * grad
    if descent.alpha:
        weight *= (-descent.lr * descent.alpha * weight.sign() * grad).exp()
