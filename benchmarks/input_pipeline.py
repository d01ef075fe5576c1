"""What the input costs: making a batch of CIFAR images against a training step of ResNet-20 on it.

Order, crop, flip and normalisation are made on the device by the training process itself, so their time adds to
the step's. The pixels are random: their values change nothing about the work, and no data set is needed.

    python benchmarks/input_pipeline.py [--threads 1] [--batch-size 256] [--rounds 7]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

from sparseopt.lab.data import Batch, Dataset, TensorPipeline
from sparseopt.lab.models import CifarResNet

IMAGES = 50_000
TARGET = 0.03


def pipeline(batch_size: int) -> TensorPipeline:
    """The input pipeline over as many images as CIFAR has."""
    images = torch.randint(256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(100, (IMAGES,))
    dataset = Dataset(
        "random", images, labels, images[:1], labels[:1], 100, (0.5,) * 3, (0.25,) * 3, augmented=True
    )
    return TensorPipeline(dataset, batch_size, seed=0, augment=True, device=torch.device("cpu"))


def step(model: CifarResNet, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """One step of dense training."""
    optimizer.zero_grad()
    cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = pipeline(options.batch_size)
    model = CifarResNet(20, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    epoch = seconds(lambda: next(data.train_batches(0)))  # draws the epoch's order and augmentation as well
    batches = data.train_batches(0)
    step(model, optimizer, next(batches))
    inputs, steps = [], []
    for _ in range(options.rounds):  # in turn, so that both meet the machine in the same state
        inputs.append(seconds(lambda: next(batches)))
        batch = next(batches)
        steps.append(seconds(lambda batch=batch: step(model, optimizer, batch)))
    a_batch, a_step = statistics.median(inputs), statistics.median(steps)
    share = (a_batch + epoch / data.steps_per_epoch) / a_step
    print(f"threads {options.threads}, batch {options.batch_size}, median of {options.rounds}")
    print(f"  drawing an epoch and making its first batch  {epoch * 1e3:8.2f} ms")
    print(f"  making a batch                               {a_batch * 1e3:8.2f} ms")
    print(f"  a training step of ResNet-20                 {a_step * 1e3:8.2f} ms")
    print(f"  input / step                                 {share:8.2%}   (target: below {TARGET:.0%})")
    return 0 if share < TARGET else 1


if __name__ == "__main__":
    raise SystemExit(main())
