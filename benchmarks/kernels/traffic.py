"""What share of an accelerated training step is memory traffic: python benchmarks/kernels/traffic.py

Three times are taken: of the step; of the step with hardly a weight left, which is all that does not depend on the weights; and
of a plain copy that moves as many bytes as the kernels read and write, which is the least that these bytes cost.
"""

from typing import Any
from unittest.mock import patch

import torch
from candidates import Step, images, sparse_training
from timing import interleaved, options
from torch import Tensor

from sparseopt.kernels.native.arguments import Lanes

NO_WEIGHTS = 0.999
COPIED = 1 << 21  # floats: an activation of ResNet-20 at batch 128, as the kernels write it


def bytes_of(step: Step) -> int:
    """Of every activation a kernel is given, in a step that is no repetition: each is read or written once."""
    total = 0
    image = Lanes.image

    def counted(self: Lanes, tensor: Tensor, border: int, **kind: Any) -> Any:
        nonlocal total
        total += tensor.numel() * tensor.element_size()
        return image(self, tensor, border, **kind)

    with patch.object(Lanes, "image", counted):
        step()
    return total


def copies(moved: int) -> Step:
    """A step that moves as many bytes, half of them read and half written."""
    source, target = torch.zeros(COPIED), torch.zeros(COPIED)
    times = round(moved / (2 * COPIED * source.element_size()))

    def step() -> None:
        for _ in range(times):
            target.copy_(source)

    return step


def main() -> None:
    given = options(__doc__, network=(str, "resnet20"), batch=(int, 128), repeats=(int, 10))
    x = images(given.network, given.batch)
    print(
        "\n| | step, ms | without weights, ms | GB moved | copying them, ms | share of the step |\n|---|---|---|---|---|---|"
    )
    for distribution in given.distribution:
        empty = sparse_training(given.network, x, NO_WEIGHTS, distribution, wrapped=True)
        for sparsity in given.sparsity:
            step = sparse_training(given.network, x, sparsity, distribution, wrapped=True)
            moved = bytes_of(step)
            times = interleaved(
                {"step": step, "empty": empty, "copy": copies(moved)}, given.repeats, given.clock
            )
            cells = (
                f"{times['step']:.1f}",
                f"{times['empty']:.1f}",
                f"{moved / 1e9:.2f}",
                f"{times['copy']:.1f}",
            )
            share = times["copy"] / times["step"]
            print(f"| {distribution} {sparsity:.0%} | {' | '.join(cells)} | {share:.0%} |")


if __name__ == "__main__":
    main()
