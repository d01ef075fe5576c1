"""Where the time and the memory of an accelerated training step go: python benchmarks/kernels/shares.py"""

import argparse
import resource

import torch
from candidates import NETWORKS, dense_training, images, sparse_training
from torch.profiler import ProfilerActivity, profile

STEPS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--sparsity", type=float, default=0.95)
    parser.add_argument("--dense", action="store_true", help="the dense network, eager NCHW, for comparison")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = images(options.network, options.batch)
    if options.dense:
        step = next(iter(dense_training(options.network, x, ["eager"]).values()))
    else:
        step = sparse_training(options.network, x, options.sparsity, "erk", wrapped=True)
    for _ in range(3):
        step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(STEPS):
            step()
    print(
        recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=40)
    )
    print(f"largest memory of the process {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
