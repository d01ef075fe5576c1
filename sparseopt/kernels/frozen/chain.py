"""A frozen chain of linear layers (see `csrc/frozen_chain.h`)."""

from torch import Tensor, nn
from torch.nn import functional as F

from sparseopt.kernels.frozen.description import Linears
from sparseopt.kernels.native.arguments import FLOAT, address
from sparseopt.kernels.native.build import operators
from sparseopt.kernels.native.interface import FrozenLinear
from sparseopt.kernels.native.network import Chain, weights


class FrozenChain(nn.Module):
    def __init__(self, linears: Linears) -> None:
        super().__init__()
        self.content = linears
        self._features = linears.steps[0].weight.shape[1]
        lanes = operators().lanes()
        self._single, self._several = self.make(lanes, 0, 0), self.make(lanes, 4, 256)

    def make(self, lanes: int, vectors: int, block: int) -> Chain:
        """So many vectors of samples at a time, 0: single samples; the weights of `block` features after one another."""
        steps = self.content.steps
        layers = [
            FrozenLinear(
                weights(step.weight.position, step.weight.values, step.weight.shape),
                address(step.bias, FLOAT, step.weight.shape[0]),
                int(step.relu),
            )
            for step in steps
        ]
        kept = [each for step in steps for each in (step.weight.position, step.weight.values, step.bias)]
        chain = operators().chain(lanes, layers, kept)
        chain.choose(vectors, block)
        return chain

    def forward(self, x: Tensor) -> tuple[Tensor]:
        if x.shape[-1] != self._features or (self.content.flat and x.dim() != 2):
            shape = f"(N, {self._features})" if self.content.flat else f"(..., {self._features})"
            raise RuntimeError(f"expected features of shape {shape}, got {tuple(x.shape)}")
        flat = x.float().reshape(-1, x.shape[-1]).contiguous()
        y = (self._single if len(flat) < 4 else self._several).run(flat)
        return (y.view(*x.shape[:-1], y.shape[-1]),)

    def __deepcopy__(self, memo: dict[int, object]) -> "FrozenChain":
        return FrozenChain(self.content)


def run_dense(linears: Linears, x: Tensor) -> Tensor:
    """The same by torch's own matrix products."""
    x = x.float()
    for step in linears.steps:
        x = F.linear(x, step.weight.dense(), step.bias)
        x = x.relu() if step.relu else x
    return x
