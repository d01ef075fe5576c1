"""A trained dense network taken to 90% sparsity by gradual magnitude pruning, beside sparse training from scratch.

    python examples/pretrained_to_sparse.py

All arms have the same budget: as many epochs of sparse training, on 4,000 real handwritten digits. Two start from a dense run of
the lab (`sparseopt train digits-mlp --method dense --hidden 256 256 --epochs 10`), one from fresh weights.
"""

import argparse
import copy
from dataclasses import replace
from statistics import mean

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sparseopt as so
from sparseopt.lab.config.recipes import RECIPES
from sparseopt.lab.data import load
from sparseopt.lab.models import mlp
from sparseopt.lab.training.train import train as train_in_the_lab

HIDDEN = (256, 256)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int, seed: int) -> float:
    """Train with a cosine to zero; accuracy on the 1,000 digits held out."""
    data, draw = load("digits"), torch.Generator().manual_seed(seed)
    images = data.train_images.float().div(255).sub(0.13).div(0.31)
    steps = epochs * (len(images) // 128)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=draw)
        for batch in order.split(128)[: len(images) // 128]:
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), data.train_labels[batch]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        test = data.test_images.float().div(255).sub(0.13).div(0.31)
        right = model(test).argmax(1) == data.test_labels
    model.train()
    return right.double().mean().item()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def dense_run(epochs: int, seed: int) -> tuple[nn.Module, float]:
    """A dense network that the lab has trained, and its accuracy."""
    recipe = replace(RECIPES["digits-mlp"], method="dense", hidden=HIDDEN, epochs=epochs, seed=seed)
    run = train_in_the_lab(recipe)
    assert run.experiment is not None
    return run.experiment.model, run.result["test_accuracy"]


def compare(seed: int, sparsity: float, epochs: int, dense_epochs: int) -> dict[str, float]:
    steps = epochs * (4000 // 128)
    dense, dense_accuracy = dense_run(dense_epochs, seed)
    accuracy = {"dense": dense_accuracy}

    model = copy.deepcopy(dense)
    topology = so.sparsify(model, 0.0)  # all weights, to be pruned by and by
    method = so.GMP(total_steps=steps, sparsity=sparsity, every=5, until=0.4, scope="global")
    accuracy["GMP from the dense one"] = train(
        model, so.SparseOpt(sgd(model), topology, method), epochs, seed
    )

    model = copy.deepcopy(dense)
    topology = so.sparsify(model, sparsity, masks="magnitude-global")
    accuracy["pruned at once"] = train(model, so.SparseOpt(sgd(model), topology, so.Static()), epochs, seed)

    torch.manual_seed(seed)
    model = mlp((1, 28, 28), 10, HIDDEN)
    topology = so.sparsify(model, sparsity, seed=seed)
    method = so.RigL(total_steps=steps, every=10)
    accuracy["RigL from scratch"] = train(model, so.SparseOpt(sgd(model), topology, method), epochs, seed)
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--dense-epochs", type=int, default=10)
    options = parser.parse_args()
    results = [
        compare(seed, options.sparsity, options.epochs, options.dense_epochs) for seed in range(options.seeds)
    ]
    for name in results[0]:
        values = [100 * result[name] for result in results]
        print(f"{name:24} {mean(values):5.1f}%  ({', '.join(f'{value:.1f}' for value in values)})")


if __name__ == "__main__":
    main()
