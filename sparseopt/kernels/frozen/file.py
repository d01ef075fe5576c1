"""A sparse network in a small file: active weights and one bit for every possible one, in safetensors.

    NAME          a tensor that is not sparse, as it is
    NAME#values   the active weights of a sparse one, in the order of memory
    NAME#mask     its mask, eight weights a byte, the first in the lowest bit

The metadata of the file holds the format and the shapes of the sparse tensors. Nothing in it is code.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sparseopt.topology import Topology, sparsify
from sparseopt.topology.bits import pack, unpack

FORMAT = "sparseopt-packed-1"
VALUES, MASK = "#values", "#mask"


@dataclass(frozen=True)
class Contents:
    """What a file holds: the dense state, zeros included, and the masks."""

    state: dict[str, Tensor]
    masks: dict[str, Tensor]


def save(model: nn.Module, topology: Topology, path: str | Path) -> None:
    """Write a sparse model to a small file that `load` reads."""
    write(model.state_dict(), topology.masks, path)


def load(path: str | Path, model: nn.Module) -> Topology:
    """Fill a model with what `save` wrote, and return its topology.

    >>> import sparseopt as so
    >>> from torch import nn
    >>> folder = getfixture("tmp_path")
    >>> model = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))
    >>> so.kernels.save(model, so.sparsify(model, sparsity=0.95), folder / "model.safetensors")
    >>> other = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))
    >>> round(so.load(folder / "model.safetensors", other).sparsity(), 3)
    0.95
    """
    contents = read(path)
    model.load_state_dict(contents.state)
    size = sum(mask.numel() for mask in contents.masks.values())
    active = sum(int(mask.sum()) for mask in contents.masks.values())
    return sparsify(model, 1 - active / size, masks=contents.masks)


def write(state: Mapping[str, Tensor], masks: Mapping[str, Tensor], path: str | Path) -> None:
    """Write a state whose tensors named in `masks` are zero outside their mask."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        tensor = tensor.detach().cpu()
        if name not in masks:
            tensors[name] = tensor.contiguous().clone()
            continue
        mask = masks[name].cpu()
        if bool((tensor[~mask] != 0).any()):
            raise ValueError(f"{name!r} is not zero outside its mask; call topology.apply() before saving")
        tensors[name + VALUES], tensors[name + MASK] = tensor[mask].contiguous(), pack(mask)
    missing = sorted(set(masks) - set(state))
    if missing:
        raise ValueError(f"masks of tensors that are not in the state: {', '.join(missing)}")
    shapes = {name: list(mask.shape) for name, mask in masks.items()}
    save_file(tensors, path, {"format": FORMAT, "shapes": json.dumps(shapes)})


def read(path: str | Path) -> Contents:
    """The dense state and the masks in a file."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError(f"{path} has format {metadata.get('format')!r}; this version reads {FORMAT!r}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    shapes: dict[str, list[int]] = json.loads(metadata["shapes"])
    masks = {name: unpack(tensors.pop(name + MASK), tuple(shape)) for name, shape in shapes.items()}
    state = {name: _dense(tensors.pop(name + VALUES), mask) for name, mask in masks.items()}
    return Contents({**tensors, **state}, masks)


def _dense(values: Tensor, mask: Tensor) -> Tensor:
    dense = torch.zeros(mask.shape, dtype=values.dtype)
    dense[mask] = values
    return dense
