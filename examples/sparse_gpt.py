"""A 90% sparse GPT on real text, character by character, beside the dense one: at equal steps, and at equal FLOPs.

    python examples/sparse_gpt.py --steps 600

The text comes with Python, and the dense model is one of the lab's (`pip install '.[lab]'`). What makes it sparse is marked.
"""

import argparse

import torch
from torch.nn.functional import cross_entropy

import sparseopt as so
from sparseopt.lab.data.text import CHARACTERS, load_text, windows
from sparseopt.lab.models import Decoder


def train(
    steps: int, sparsity: float, width: int = 128, depth: int = 4, context: int = 64, seed: int = 0
) -> tuple[float, float]:
    """Loss on the held-out text in nats a character, and the cost of the training relative to a dense one of as many steps."""
    torch.manual_seed(seed)
    text, draw = load_text(), torch.Generator().manual_seed(seed)
    model, cost = Decoder(CHARACTERS, context, width, depth), 1.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    if sparsity:
        topology = so.sparsify(  # sparse
            model, sparsity, distribution="uniform", exclude="head.weight", seed=seed
        )
        method = so.RigL(total_steps=steps, every=max(steps // 20, 5))
        optimizer = so.SparseOpt(optimizer, topology, method)  # sparse
        flops = so.analysis.count_flops(model, topology, torch.zeros(1, context, dtype=torch.long))
        cost = flops.training(method)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps, pct_start=0.1)
    for _ in range(steps):
        inputs, following = windows(text.train, context, 24, draw)
        optimizer.zero_grad()
        cross_entropy(model(inputs), following).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return evaluate(model, text.test, context), cost


@torch.no_grad()
def evaluate(model: torch.nn.Module, text: torch.Tensor, context: int) -> float:
    inputs, following = windows(text, context, 200, torch.Generator().manual_seed(0))
    return cross_entropy(model(inputs), following).item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    options = parser.parse_args()
    shape = {"width": options.width, "depth": options.depth}
    sparse, cost = train(options.steps, options.sparsity, **shape)
    dense, _ = train(options.steps, 0.0, **shape)
    fewer = max(round(cost * options.steps), 1)
    same_flops, _ = train(fewer, 0.0, **shape)
    print("loss on held-out text, nats a character")
    print(
        f"{options.sparsity:.0%} sparse (RigL), {options.steps} steps, {cost:.2f} of the dense FLOPs: {sparse:.3f}"
    )
    print(f"dense, {options.steps} steps: {dense:.3f}")
    print(f"dense, {fewer} steps, the sparse one's FLOPs: {same_flops:.3f}")


if __name__ == "__main__":
    main()
