"""What a network costs, counted as the RigL paper counts (Evci et al. 2020, appendix H).

A layer of density d costs d times the floating-point operations of the dense layer. With f_S and f_D the operations of a sparse
and a dense forward pass, a step of training costs

    dense      3 f_D            forward, gradient of the activations, gradient of the weights
    sparse     3 f_S            where only active weights need a gradient
    update     2 f_S + f_D      where the method reads the gradient of all weights, as RigL does when it grows

and a run the sum of its steps: each method says what one of its steps costs (`cost_at`), as its paper counts. Normalisation,
activations, masking and the optimizer are not counted; they are the same for all, and small. These are operations that a
network needs, not seconds: dense hardware spends the dense time on a masked network.

>>> import torch, sparseopt as so
>>> model = torch.nn.Sequential(torch.nn.Linear(784, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))
>>> cost = so.analysis.count_flops(model, so.sparsify(model, 0.9, distribution="uniform"), torch.empty(1, 784))
>>> cost.dense, round(cost.inference, 3)
(476400, 0.1)
"""

import copy
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from sparseopt.methods import Method
from sparseopt.topology import Topology, uncompiled

NO_WEIGHT = (
    ""  # the name under which operations between activations are counted, such as those of attention scores
)

BILINEAR = torch.ops.aten._trilinear

_COMPUTED = re.compile(r"parametrizations\.([^.]+)\.original\d*$")


@dataclass(frozen=True)
class Flops:
    """Operations of one forward pass, dense and sparse."""

    dense: int
    sparse: float
    layers: Mapping[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict, compare=False, repr=False)
    """Dense operations and shape of every sparse layer, where they are known."""

    @property
    def inference(self) -> float:
        """Cost of inference relative to dense."""
        return self.sparse / self.dense

    def training(self, method: Method) -> float:
        """Cost of training relative to dense, averaged over the steps of the method's schedule.

        A method that begins denser than it ends is counted by the sparsity that it ends with.
        """
        steps, last = range(1, method.total_steps + 1), self._at_the_end(method)
        return sum(method.cost_at(step, last) for step in steps) / len(steps)

    def _at_the_end(self, method: Method) -> float:
        """Cost of inference relative to dense after training with a method."""
        sparsity: float | None = getattr(method, "sparsity", None)
        if method.starts_at() is None or sparsity is None or not self.layers:
            return self.inference
        counts = method.final_counts({name: shape for name, (_, shape) in self.layers.items()})
        density = {
            name: counts[name] / math.prod(shape) if name in counts else 1 - sparsity
            for name, (_, shape) in self.layers.items()
        }
        rest = self.dense - sum(count for count, _ in self.layers.values())
        return (rest + sum(density[name] * count for name, (count, _) in self.layers.items())) / self.dense


def count_flops(model: nn.Module, topology: Topology, *inputs: Any) -> Flops:
    """Cost of a network with the densities of its topology, for inputs of the given shapes."""
    names = {_COMPUTED.sub(r"\1", name): name for name in topology.layers}
    flops = forward_flops(model, *inputs)
    found = at_densities(flops, {name: 1 - topology.sparsity(known) for name, known in names.items()})
    shapes = {name: tuple(topology.layers[known].shape) for name, known in names.items()}
    return replace(found, layers={name: (flops.get(name, 0), shape) for name, shape in shapes.items()})


def at_densities(flops: Mapping[str, int], densities: Mapping[str, float]) -> Flops:
    """Cost of a network whose parameters cost `flops` when dense; parameters without a density are dense."""
    return Flops(sum(flops.values()), sum(densities.get(name, 1.0) * count for name, count in flops.items()))


def forward_flops(model: nn.Module, *inputs: Any) -> dict[str, int]:
    """Operations of a dense forward pass by the parameter they involve, two for a multiplication with its addition.

    A weight that is computed from others (packed storage, weight_norm) has the name that it has in its module.
    Nothing is computed: a copy of the model runs on the meta device, which has shapes and no numbers.
    """
    model = uncompiled(model)
    first: dict[int, str] = {}  # a weight that is shared has several names, and the copy as many weights
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
    known = {name: first[id(each)] for name, each in model.named_parameters(remove_duplicate=False)}
    shapes = copy.deepcopy(model).to("meta").eval()
    counter = _CountByParameter([(known[name], each) for name, each in shapes.named_parameters()])
    # Without gradients, attention would take a fused path that hides its parts.
    with torch.enable_grad(), parametrize.cached():
        computed = _computed_weights(shapes)
        counter.names |= {_memory(weight): name for name, weight in computed.items()}
        with counter:
            shapes(*tree_map(lambda each: each.to("meta") if isinstance(each, Tensor) else each, inputs))
    return dict(counter.flops)


def _computed_weights(model: nn.Module) -> dict[str, Tensor]:
    """What parametrizations compute, each of which is computed once while they are cached."""
    return {
        f"{prefix}.{leaf}".removeprefix("."): getattr(module, leaf)
        for prefix, module in model.named_modules()
        if parametrize.is_parametrized(module)
        for leaf in module.parametrizations  # pyright: ignore
    }


class _CountByParameter(TorchDispatchMode):
    """Counts the operations of torch's matrix products and convolutions for the parameter whose memory they read."""

    def __init__(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        super().__init__()
        self.flops: Counter[str] = Counter()
        self.names = {_memory(parameter): name for name, parameter in parameters if parameter.dim() > 1}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        formula = _bilinear if func._overloadpacket is BILINEAR else flop_registry.get(func._overloadpacket)
        if formula is None:
            parts = func.decompose(*args, **kwargs)  # an operation made of others, which come here in turn
            return func(*args, **kwargs) if parts is NotImplemented else parts
        out = func(*args, **kwargs)
        read = [_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        name = next((self.names[memory] for memory in read if memory in self.names), NO_WEIGHT)
        self.flops[name] += formula(*args, **kwargs, out_val=out)
        return out


def _bilinear(one: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    return 2 * weight.numel() * one.shape[0]


def _memory(tensor: Tensor) -> int:
    """What a tensor shares with its transposes and slices."""
    return tensor.untyped_storage()._cdata
