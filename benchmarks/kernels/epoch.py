"""RigL on real CIFAR-100, augmentation and mask updates included: accelerated against compiled dense kernels, in both layouts.

python benchmarks/kernels/epoch.py --data-dir FOLDER     FOLDER holds the official CIFAR-100 files

All runs take turns, a few steps each. An update of the masks, every 100 steps, falls into the measured time.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from timing import CLOCKS, options, print_table
from torch.nn.functional import cross_entropy

from sparseopt.lab.config.recipes import RECIPES
from sparseopt.lab.training.experiment import build

TURN = 10  # steps a run takes before it is the next one's turn


DENSE = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}


def training(
    sparsity: float, batch: int, data_dir: Path | None, layout: str | None = None
) -> Callable[[], None]:
    """Takes one step at each call: accelerated, or on compiled dense kernels in a layout."""
    config = replace(
        RECIPES["cifar100-resnet20"], sparsity=sparsity, batch_size=batch, method="rigl", shortcut="padding"
    )
    experiment = build(config, data_dir=data_dir, accelerate="on" if layout is None else "off")
    order = DENSE[layout or "NCHW"]
    experiment.model.to(memory_format=order)  # pyright: ignore[reportCallIssue]
    forward = experiment.model if layout is None else torch.compile(experiment.model)
    batches = iter(experiment.data.train_batches(0, 0))

    def step() -> None:
        images, labels = next(batches)
        experiment.optimizer.zero_grad()
        cross_entropy(forward(images.contiguous(memory_format=order)), labels).backward()
        experiment.optimizer.step()

    return step


def main() -> None:
    given = options(__doc__, data_dir=(Path, None), batch=(int, 128), steps=(int, 200))
    first, *_ = given.sparsity
    runs = {f"dense {name}": training(first, given.batch, given.data_dir, name) for name in DENSE}
    for sparsity in given.sparsity:
        runs[f"accelerated {sparsity:.0%}"] = training(sparsity, given.batch, given.data_dir)
    for step in runs.values():
        step()  # compiles
    now = CLOCKS[given.clock]
    total = dict.fromkeys(runs, 0.0)
    for _ in range(given.steps // TURN):
        for name, step in runs.items():
            start = now()
            for _ in range(TURN):
                step()
            total[name] += now() - start
    steps = given.steps // TURN * TURN
    print_table(
        f"RigL, ResNet-20, CIFAR-100, mean step of {steps}, batch {given.batch}",
        {name: seconds / steps * 1e3 for name, seconds in total.items()},
    )


if __name__ == "__main__":
    main()
