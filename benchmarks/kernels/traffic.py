"""What share of an accelerated training step is memory traffic: python benchmarks/kernels/traffic.py

Three times are taken: of the step; of the step with hardly a weight left, which is all that does not depend on the weights; and
of a plain copy that moves as many bytes as the kernels read and write, which is the least that these bytes cost.
"""

from typing import Any

import torch
from candidates import Step, images, sparse_training
from timing import interleaved, options
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NO_WEIGHTS = 0.999
COPIED = 1 << 21  # floats: an activation of ResNet-20 at batch 128, as the kernels write it


class ActivationBytes(TorchDispatchMode):
    """Counts the bytes of every activation a kernel is given: each is read or written once."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "sparseopt":
            given = [each for each in args if isinstance(each, Tensor) and each.dim() == 5]
            self.total += sum(each.numel() * each.element_size() for each in given)
        return func(*args, **(kwargs or {}))


def bytes_of(step: Step) -> int:
    with ActivationBytes() as counted:
        step()
    return counted.total


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
            step()
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
