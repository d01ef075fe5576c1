"""A whole forward pass, sparse against the fastest dense one: python benchmarks/kernels/inference.py --batch 1"""

import argparse

import torch
import torch._inductor.config
from candidates import NETWORKS, dense_variants, images, settled, sparse_inference
from timing import CLOCKS, interleaved, machine, print_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="resnet20")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--inner", type=int, default=10)
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.9, 0.95, 0.97])
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: on a busy machine, with one thread"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch._inductor.config.freezing = True  # folds batch norm, as the sparse engine does
    x = images(options.network, options.batch)
    print(machine(options.clock))
    passes = {}
    for name, (model, forward, data) in dense_variants(options.network, x).items():
        settled(model, images(options.network, 16))
        passes[name] = lambda forward=forward, data=data: forward(data)
    for distribution in ("erk", "uniform"):
        for sparsity in options.sparsity:
            name = f"{distribution} {sparsity:.0%}"
            passes[name] = sparse_inference(options.network, x, sparsity, distribution)
    with torch.no_grad():
        times = interleaved(passes, options.repeats, options.clock, inner=options.inner)
    print_table(f"{options.network}, inference, batch {options.batch}", times)


if __name__ == "__main__":
    main()
