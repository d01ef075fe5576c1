"""A whole training step, sparse against the fastest dense one: python benchmarks/kernels/training.py --network resnet20

A turn is `--inner` steps in a row, as in training: a single one would find the caches full of another candidate's data.

A large network in a minute: --network resnet50 --batch 8 --dense eager --distribution erk --optimizer SparseOpt --repeats 3
"""

import itertools

import torch
from candidates import dense_training, images, sparse_training
from timing import interleaved, options, print_table


def main() -> None:
    given = options(
        __doc__,
        network=(str, "resnet20"),
        batch=(int, 128),
        repeats=(int, 12),
        inner=(int, 5),
        optimizer=(str, "SparseOpt"),
        storage=(str, "both"),
        activations=(str, "float32"),
    )
    x = images(given.network, given.batch)
    steps = dense_training(given.network, x, given.dense)
    optimizers = ("SparseOpt", "SGD") if given.optimizer == "both" else (given.optimizer,)
    storages = ("packed", "dense") if given.storage == "both" else (given.storage,)
    kept = ("float32", "bfloat16") if given.activations == "both" else (given.activations,)
    for distribution in given.distribution:
        for sparsity in given.sparsity:
            for optimizer, storage, activations in itertools.product(optimizers, storages, kept):
                name = f"{distribution} {sparsity:.0%} {optimizer} {storage} {activations}"
                steps[name] = sparse_training(
                    *(given.network, x, sparsity, distribution),
                    wrapped=optimizer == "SparseOpt",
                    storage=storage,
                    activations=getattr(torch, activations),
                )
    times = interleaved(steps, given.repeats, given.clock, inner=given.inner)
    print_table(f"{given.network}, training step, batch {given.batch}", times)


if __name__ == "__main__":
    main()
