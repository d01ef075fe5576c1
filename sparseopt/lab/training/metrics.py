"""What is recorded of a run: one row of numbers an epoch."""

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import sparseopt as so
from sparseopt.lab.runs.row import Row
from sparseopt.lab.training.experiment import Experiment

LOSS, CORRECT, GRAD_NORM = range(3)

DENSE: Row = {
    "sparsity": 0.0,
    "itop_rate": 1.0,
    "dead_neurons": 0,
    "fan_in_spread": 0.0,
    "factor_mean": 1.0,
    "factor_spread": 0.0,
}


def new_trace(experiment: Experiment) -> Tensor:
    """Room for loss, correct answers and gradient norm of every step of an epoch, on the device.

    The steps write into it without waiting for the device; it is read when the numbers are shown.
    """
    return torch.full((3, experiment.data.steps_per_epoch), math.nan, device=experiment.device)


def epoch_row(experiment: Experiment, trace: Tensor, earlier: list[Row], seconds: float) -> Row:
    """The row of the epoch that has just ended, with the test set evaluated."""
    config, steps = experiment.config, experiment.data.steps_per_epoch
    epoch = len(earlier) + 1
    test_loss, test_accuracy = evaluate(experiment)
    train = train_metrics(trace, config.batch_size, config.max_grad_norm)
    losses = [row["train_loss"] for row in earlier] + [train["train_loss"]]
    return {
        "epoch": epoch,
        "step": epoch * steps,
        **train,
        "test_loss": test_loss,
        "test_accuracy": test_accuracy,
        "mean_train_loss": math.fsum(losses) / epoch,
        "lr": experiment.schedule(epoch * steps - 1),
        **topology_metrics(experiment.topology, experiment.factors),
        "seconds": round(seconds, 3),
    }


def train_metrics(trace: Tensor, batch_size: int, max_grad_norm: float | None) -> Row:
    """Means over the steps that the trace has so far; the norm only over steps that moved weights."""
    loss, correct, norms = trace.double().cpu()
    norms = norms[~norms.isnan()]
    clipped = (norms > (math.inf if max_grad_norm is None else max_grad_norm)).double()
    return {
        "train_loss": loss.mean().item(),
        "train_accuracy": correct.mean().item() / batch_size,
        "grad_norm": _mean(norms),
        "clipped_steps": _mean(clipped),
    }


def topology_metrics(topology: so.Topology | None, factors: dict[str, Tensor]) -> Row:
    """How sparse, how explored, and how uneven the network is. Spreads are within layers, averaged over layers."""
    if topology is None:
        return dict(DENSE)
    fan_in = [topology.fan_in(name).double().cpu() for name in topology.layers]
    in_force = [values.double().cpu() for values in factors.values()]
    return {
        "sparsity": topology.sparsity(),
        "itop_rate": topology.itop_rate(),
        "dead_neurons": topology.dead_neurons(),
        "fan_in_spread": _average([values.std(correction=0) / values.mean() for values in fan_in]),
        "factor_mean": torch.cat(in_force).mean().item() if in_force else 1.0,
        "factor_spread": _average([values.std(correction=0) for values in in_force]),
    }


@torch.no_grad()
def evaluate(experiment: Experiment) -> tuple[float, float]:
    """Mean loss and accuracy on the test set."""
    model = experiment.model
    experiment.ranks.copy_first_(model.buffers())  # running statistics, which every rank has of its own share
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=experiment.device)
    for x, y in experiment.data.test_batches():
        scores = experiment.scores(model, x)
        sums[0] += cross_entropy(scores, y, reduction="sum") * len(y) / y.numel()
        sums[1] += right(scores, y)
        sums[2] += len(y)
    model.train()
    loss, correct, images = experiment.ranks.sum_(sums).tolist()
    return loss / images, correct / images


def right(scores: Tensor, y: Tensor) -> Tensor:
    """How many answers are right; where there are several an image, or a stretch of text, the share of them counts."""
    return (scores.argmax(1) == y).float().view(len(y), -1).mean(1).sum()


def _mean(values: Tensor) -> float | None:
    return values.mean().item() if len(values) else None


def _average(values: list[Tensor]) -> float:
    return torch.stack(values).mean().item() if values else 0.0
