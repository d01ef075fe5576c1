"""Which parameters of a model can be sparse, and what a neuron is in each.

A neuron is one output unit: a row of a Linear weight, an output channel of a convolution. Its incoming weights lie along
axis 0 of the tensor, except in transposed convolutions, whose weights are (in, out / groups, *kernel): there axis 1 counts the
outputs of one group, and the groups divide axis 0.
"""

import difflib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn

Patterns = str | list[str] | tuple[str, ...] | None

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WEIGHTED = (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class Layer:
    """One sparsifiable weight tensor: its name, its shape, and where its neurons are."""

    name: str
    shape: tuple[int, ...]
    transposed: bool = False
    groups: int = 1

    @property
    def size(self) -> int:
        """Number of possible weights."""
        return math.prod(self.shape)

    @property
    def neurons(self) -> int:
        return self.groups * self.shape[1] if self.transposed else self.shape[0]

    @property
    def inputs(self) -> int:
        """Number of possible incoming weights of one neuron (N in the paper)."""
        return self.size // self.neurons

    def by_neuron(self, tensor: Tensor) -> Tensor:
        """A tensor of this layer's shape as a (neurons, inputs) matrix; a view where the layout allows it."""
        if not self.transposed:
            return tensor.reshape(self.neurons, -1)
        # (groups, in / groups, out / groups, kernel)
        grouped = tensor.unflatten(0, (self.groups, -1)).flatten(3)
        return grouped.transpose(1, 2).reshape(self.neurons, -1)

    def from_neurons(self, matrix: Tensor) -> Tensor:
        """The inverse of `by_neuron`: a (neurons, inputs) matrix as a tensor of this layer's shape."""
        if not self.transposed:
            return matrix.reshape(self.shape)
        per_group = matrix.reshape(self.groups, self.shape[1], self.shape[0] // self.groups, -1)
        return per_group.transpose(1, 2).reshape(self.shape)

    def neuron_of(self, index: Tensor) -> Tensor:
        """The neuron that each of these flat positions of the weight leads to."""
        if not self.transposed:
            return index // self.inputs
        kernel = math.prod(self.shape[2:])
        group = index // (self.size // self.groups)
        return group * self.shape[1] + index // kernel % self.shape[1]

    def broadcast(self, per_neuron: Tensor) -> Tensor:
        """One number a neuron, in a shape that broadcasts against the layer's weights."""
        trailing = [1] * (len(self.shape) - 2)
        if not self.transposed:
            return per_neuron.view(-1, 1, *trailing)
        by_group = per_neuron.view(self.groups, 1, -1)
        if self.groups > 1:  # every input row of a group meets that group's outputs
            by_group = by_group.expand(-1, self.shape[0] // self.groups, -1)
        return by_group.reshape(-1, self.shape[1], *trailing)


def find_layers(
    model: nn.Module, include: Patterns = None, exclude: Patterns = None
) -> dict[str, tuple[Layer, nn.Parameter]]:
    """All sparsifiable weights of the model, by parameter name; a tied weight appears once, under its first name.

    Biases, norm layers and embeddings are never among them, nor is a weight tied to an embedding. `include` and `exclude`
    are glob patterns over parameter names.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {model!r:.80}")
    found: dict[str, tuple[Layer, nn.Parameter]] = {}
    seen = {id(weight) for weight in _embeddings(model)}
    for name, layer, parameter in _weights(model):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            found[name] = (layer, parameter)
    if not found:
        kinds = ", ".join(kind.__name__ for kind in (*WEIGHTED, nn.MultiheadAttention))
        raise ValueError(f"the model has no layer that can be sparse; supported are {kinds}")
    chosen = _matching(include, found, "include") if include is not None else set(found)
    chosen -= _matching(exclude, found, "exclude") if exclude is not None else set()
    if not chosen:
        raise ValueError(f"include={include!r} and exclude={exclude!r} together leave no layer to be sparse")
    found = {name: entry for name, entry in found.items() if name in chosen}
    for name, (_, parameter) in found.items():
        _check_usable(name, parameter)
    return found


def _weights(model: nn.Module) -> Iterator[tuple[str, Layer, nn.Parameter]]:
    for prefix, module in model.named_modules():
        if isinstance(module, WEIGHTED):
            names: tuple[str, ...] = ("weight",)
        elif isinstance(module, nn.MultiheadAttention):
            names = ATTENTION_WEIGHTS  # out_proj is a Linear of its own
        else:
            continue
        for leaf in names:
            parameter = module._parameters.get(leaf)
            if parameter is None:
                continue
            name = f"{prefix}.{leaf}" if prefix else leaf
            transposed = isinstance(module, TRANSPOSED)
            groups = int(getattr(module, "groups", 1)) if transposed else 1
            shape = () if isinstance(parameter, nn.UninitializedParameter) else tuple(parameter.shape)
            yield name, Layer(name, shape, transposed, groups), parameter


def _embeddings(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            yield module.weight


def _check_usable(name: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, nn.UninitializedParameter):
        raise ValueError(f"{name!r} has no shape yet: run one batch through the model before sparsifying it")
    if parameter.device.type == "meta":
        raise ValueError(
            f"{name!r} is on the meta device: materialise and initialise the model before sparsifying it"
        )
    if not (parameter.dtype.is_floating_point or parameter.dtype.is_complex):
        raise ValueError(f"{name!r} has dtype {parameter.dtype}: only floating-point weights can be sparse")
    if parameter.numel() == 0:
        raise ValueError(
            f"{name!r} has no weights, shape {tuple(parameter.shape)}: leave it out with exclude={name!r}"
        )


def _matching(patterns: Patterns, found: dict[str, tuple[Layer, nn.Parameter]], option: str) -> set[str]:
    matched: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns or ():
        hits = {name for name in found if fnmatchcase(name, pattern)}
        if not hits:
            near = difflib.get_close_matches(pattern, found, n=3, cutoff=0.3) or list(found)[:3]
            raise ValueError(
                f"{option} pattern {pattern!r} matches no sparsifiable parameter; near names: {', '.join(near)}"
            )
        matched |= hits
    return matched
