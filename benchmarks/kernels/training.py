"""A whole training step, sparse against the fastest dense one: python benchmarks/kernels/training.py --network resnet20"""

from candidates import dense_training, images, sparse_training
from timing import interleaved, options, print_table


def main() -> None:
    given = options(__doc__, network=(str, "resnet20"), batch=(int, 128), repeats=(int, 12))
    x = images(given.network, given.batch)
    steps = dense_training(given.network, x)
    for distribution in ("erk", "uniform"):
        for sparsity in given.sparsity:
            for wrapped in (True, False):
                name = f"{distribution} {sparsity:.0%} {'SparseOpt' if wrapped else 'plain SGD'}"
                steps[name] = sparse_training(given.network, x, sparsity, distribution, wrapped=wrapped)
    times = interleaved(steps, given.repeats, given.clock)
    print_table(f"{given.network}, training step, batch {given.batch}", times)


if __name__ == "__main__":
    main()
