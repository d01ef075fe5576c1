"""A frozen chain of linear layers, on samples in tiles (see `csrc/linear.h`)."""

from torch import Tensor, nn
from torch.nn import functional as F

from sparseopt.kernels.frozen.description import Linears
from sparseopt.kernels.native import pattern
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.memory import floats

SAMPLES = 1024  # a share of the batch: memory does not grow with the batch


class FrozenChain(nn.Module):
    def __init__(self, linears: Linears) -> None:
        super().__init__()
        self.content = linears
        self._ops = operators()
        steps = linears.steps
        lists = [pattern.linear_forward(step.weight.mask()) for step in steps]
        self._tables = (
            [step.weight.values for step in steps],
            [each.start for each in lists],
            [each.offset for each in lists],
            [int(step.relu) for step in steps],
            [step.bias for step in steps],
        )
        self._features = [steps[0].weight.shape[1], *(step.weight.shape[0] for step in steps)]

    def forward(self, x: Tensor) -> tuple[Tensor]:
        if x.shape[-1] != self._features[0] or (self.content.flat and x.dim() != 2):
            shape = f"(N, {self._features[0]})" if self.content.flat else f"(..., {self._features[0]})"
            raise RuntimeError(f"expected features of shape {shape}, got {tuple(x.shape)}")
        flat = x.float().reshape(-1, x.shape[-1]).contiguous()
        y = floats(len(flat), self._features[-1])
        for first in range(0, len(flat), SAMPLES):
            self._run(flat[first : first + SAMPLES], y[first : first + SAMPLES])
        return (y.view(*x.shape[:-1], y.shape[-1]),)

    def _run(self, x: Tensor, y: Tensor) -> None:
        lanes = self._ops.lanes()
        tiles = [floats(-(-len(x) // lanes), 1, features, 1, lanes) for features in self._features]
        self._ops.tile_samples(x, tiles[0])
        self._ops.chain_forward(*self._tables, tiles)
        self._ops.untile_samples(tiles[-1], y)

    def __deepcopy__(self, memo: dict[int, object]) -> "FrozenChain":
        return FrozenChain(self.content)


def run_dense(linears: Linears, x: Tensor) -> Tensor:
    """The same by torch's own matrix products."""
    x = x.float()
    for step in linears.steps:
        x = F.linear(x, step.weight.dense(), step.bias)
        x = x.relu() if step.relu else x
    return x
