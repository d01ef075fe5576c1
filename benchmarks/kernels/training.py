"""A whole training step, sparse against the fastest dense one: python benchmarks/kernels/training.py --network resnet20"""

import argparse

import torch
from candidates import NETWORKS, dense_training, images, sparse_training
from timing import CLOCKS, interleaved, machine, print_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.9, 0.95, 0.97])
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: on a busy machine, with one thread"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    x = images(options.network, options.batch)
    print(machine(options.clock))
    steps = dense_training(options.network, x)
    for distribution in ("erk", "uniform"):
        for sparsity in options.sparsity:
            for wrapped in (True, False):
                name = f"{distribution} {sparsity:.0%} {'SparseOpt' if wrapped else 'plain SGD'}"
                steps[name] = sparse_training(options.network, x, sparsity, distribution, wrapped=wrapped)
    times = interleaved(steps, options.repeats, options.clock)
    print_table(f"{options.network}, training step, batch {options.batch}", times)


if __name__ == "__main__":
    main()
