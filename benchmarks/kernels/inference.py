"""A whole forward pass, sparse against the fastest dense one: python benchmarks/kernels/inference.py --batch 1"""

import torch
import torch._inductor.config
from candidates import dense_variants, images, settled, sparse_inference
from timing import interleaved, options, print_table


def main() -> None:
    given = options(__doc__, network=(str, "resnet20"), batch=(int, 1), repeats=(int, 20), inner=(int, 10))
    torch._inductor.config.freezing = True  # folds batch norm, as the sparse engine does
    x = images(given.network, given.batch)
    passes = {}
    for name, (model, forward, data) in dense_variants(given.network, x, given.dense).items():
        settled(model, images(given.network, 16))
        passes[name] = lambda forward=forward, data=data: forward(data)
    for distribution in given.distribution:
        for sparsity in given.sparsity:
            name = f"{distribution} {sparsity:.0%}"
            passes[name] = sparse_inference(given.network, x, sparsity, distribution)
    with torch.no_grad():
        times = interleaved(passes, given.repeats, given.clock, inner=given.inner)
    print_table(f"{given.network}, inference, batch {given.batch}", times)


if __name__ == "__main__":
    main()
