"""A sparse network in a small file: active weights and one bit for every possible one, in safetensors.

    NAME          a tensor that is not sparse, as it is
    NAME#values   the active weights of a sparse one, in the order of memory
    NAME#mask     its mask, eight weights a byte, the first in the lowest bit

An ordinary file of dense tensors can carry masks as well, in its metadata (`dense_file`): every other program reads it as a state
dict, and `load` finds the masks.

The metadata of the file holds the format and the shapes of the sparse tensors. Nothing in it is code. A file is believed in
nothing: what it holds must fit itself and the model before a weight changes.
"""

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparseopt.kernels.frozen.tensorfile import decode, encode
from sparseopt.topology import Topology, sparsify, uncompiled
from sparseopt.topology.bits import pack, unpack

FORMAT = "sparseopt-packed-1"
VALUES, MASK = "#values", "#mask"
DENSE_MASKS = "sparseopt_masks"
"""The entry of a dense file's metadata that holds masks: {name: {"shape": [...], "bits": base64}} as JSON."""
DENSE_FILE = "model.safetensors"
"""What the dense file is called in a folder for the Hugging Face Hub."""


@dataclass(frozen=True)
class Contents:
    """What a file holds: the dense state, zeros included, and the masks."""

    state: dict[str, Tensor]
    masks: dict[str, Tensor]


def save(model: nn.Module, topology: Topology, path: str | Path) -> None:
    """Write a sparse model to a small file that `load` reads."""
    write(uncompiled(model).state_dict(), topology.masks, path)


def load(path: str | Path, model: nn.Module) -> Topology:
    """Fill a model with what `save` wrote, and return its topology.

    Args:
        path: the file that `so.kernels.save` or `sparseopt export` wrote, the model.safetensors of a run, or a folder for the
            Hugging Face Hub (`sparseopt export --format hub`).
        model: a model of the same architecture, not yet sparse; it is filled.

    >>> import sparseopt as so
    >>> from torch import nn
    >>> folder = getfixture("tmp_path")
    >>> model = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))
    >>> so.kernels.save(model, so.sparsify(model, sparsity=0.95), folder / "model.safetensors")
    >>> other = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))
    >>> round(so.load(folder / "model.safetensors", other).sparsity(), 3)
    0.95
    """
    contents, model = read(path), uncompiled(model)
    _check_fits(contents.state, model, path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        model.load_state_dict(contents.state)
        return sparsify(model, masks=contents.masks)
    except Exception:  # sparsify refuses models that are sparse already, masks of layers it does not know
        model.load_state_dict(before)
        raise


def _check_fits(state: Mapping[str, Tensor], model: nn.Module, path: str | Path) -> None:
    """Refuse a state that is not this model's, or whose parameters are not numbers."""
    own = model.state_dict()
    if set(state) != set(own):
        raise ValueError(
            f"{path} is of another network: only in the file {sorted(set(state) - set(own))}, "
            f"only in the model {sorted(set(own) - set(state))}"
        )
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, tensor in state.items():
        if tensor.shape != own[name].shape:
            raise ValueError(
                f"{path}: {name!r} has shape {tuple(tensor.shape)}, in the model {tuple(own[name].shape)}"
            )
        if _kind(tensor) != _kind(own[name]):
            raise ValueError(f"{path}: {name!r} has dtype {tensor.dtype}, in the model {own[name].dtype}")
        if name in parameters and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{path}: {name!r} has values that are infinite or not a number")


def _kind(tensor: Tensor) -> tuple[bool, bool]:
    """Precisions convert into each other; whole, real and complex numbers do not."""
    return tensor.is_floating_point(), tensor.is_complex()


def write(state: Mapping[str, Tensor], masks: Mapping[str, Tensor], path: str | Path) -> None:
    """Write a state whose tensors named in `masks` are zero outside their mask."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        tensor = tensor.detach().cpu()
        if name not in masks:
            tensors[name] = tensor.contiguous().clone()
            continue
        mask = masks[name].cpu()
        if bool((tensor[~mask] != 0).any()):
            raise ValueError(
                f"{name!r} is not zero outside its mask. If its weights were loaded, load their masks as well "
                "(topology.load_state_dict), or set the others to zero with topology.apply(); a copy or an average is saved "
                "with a topology of its own: sparsify(model, masks='nonzero')"
            )
        tensors[name + VALUES], tensors[name + MASK] = tensor[mask].contiguous(), pack(mask)
    missing = sorted(set(masks) - set(state))
    if missing:
        raise ValueError(f"masks of tensors that are not in the state: {', '.join(missing)}")
    shapes = {name: list(mask.shape) for name, mask in masks.items()}
    Path(path).write_bytes(encode(tensors, {"format": FORMAT, "shapes": json.dumps(shapes)}))


def read(path: str | Path) -> Contents:
    """The dense state and the masks in a file."""
    path = Path(path) / DENSE_FILE if Path(path).is_dir() else path
    tensors, metadata = decode(path)
    if DENSE_MASKS in metadata:
        return _dense_contents(tensors, _stored_masks(metadata, path), path)
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} is no model that this version reads, {FORMAT!r}, but {metadata.get('format')!r}; so.load_engine(path) reads "
            "engines, and so.load what so.kernels.save wrote"
        )
    masks = {name: _mask(tensors, name, shape, path) for name, shape in _shapes(metadata, path).items()}
    state = {name: _dense(tensors, name, mask, path) for name, mask in masks.items()}
    return Contents({**tensors, **state}, masks)


def dense_file(state: Mapping[str, Tensor], masks: Mapping[str, Tensor], **metadata: str) -> bytes:
    """An ordinary file of a state dict, zeros included, that any program reads; the masks are in its metadata."""
    bits = {
        name: {"shape": list(mask.shape), "bits": base64.b64encode(bytes(pack(mask.cpu()).tolist())).decode()}
        for name, mask in masks.items()
    }
    return encode(state, {**metadata, DENSE_MASKS: json.dumps(bits)})


def stored_masks(path: str | Path) -> dict[str, Tensor]:
    """The masks in the metadata of a dense file; empty if it has none."""
    _, metadata = decode(path)
    return _stored_masks(metadata, path) if DENSE_MASKS in metadata else {}


def _stored_masks(metadata: Mapping[str, str], path: str | Path) -> dict[str, Tensor]:
    try:
        entries = {
            name: (_sizes(each["shape"]), base64.b64decode(each["bits"], validate=True))
            for name, each in json.loads(metadata[DENSE_MASKS]).items()
        }
        packed = {
            name + MASK: torch.frombuffer(bytearray(bits), dtype=torch.uint8)
            for name, (_, bits) in entries.items()
        }
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: the masks in its metadata cannot be read ({error})") from error
    return {name: _mask(packed, name, shape, path) for name, (shape, _) in entries.items()}


def _sizes(shape: Any) -> list[int]:
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        raise ValueError(f"a shape of {shape!r:.80}")
    return shape


def _dense_contents(state: dict[str, Tensor], masks: dict[str, Tensor], path: str | Path) -> Contents:
    for name, mask in masks.items():
        if name not in state or state[name].shape != mask.shape:
            raise ValueError(f"{path}: the mask of {name!r} fits no tensor of the file")
        if bool((state[name][~mask] != 0).any()):
            raise ValueError(f"{path}: {name!r} is not zero outside its mask")
    return Contents(state, masks)


def _shapes(metadata: Mapping[str, str], path: str | Path) -> dict[str, list[int]]:
    try:
        shapes = json.loads(metadata["shapes"])
        if all(type(size) is int and size > 0 for shape in shapes.values() for size in shape):
            return shapes
    except (KeyError, ValueError, TypeError, AttributeError):
        pass
    raise ValueError(
        f"{path}: the shapes of its sparse tensors cannot be read: {metadata.get('shapes')!r:.80}"
    )


def _mask(tensors: dict[str, Tensor], name: str, shape: list[int], path: str | Path) -> Tensor:
    packed, size = _take(tensors, name + MASK, path), math.prod(shape)
    if packed.dtype != torch.uint8 or packed.shape != (-(-size // 8),):
        raise ValueError(
            f"{path}: the mask of {name!r} must be {-(-size // 8)} bytes for the shape {tuple(shape)}, "
            f"it is {packed.dtype} of shape {tuple(packed.shape)}"
        )
    if size % 8 and int(packed[-1]) >> size % 8:
        raise ValueError(f"{path}: the mask of {name!r} has bits beyond its {size} weights")
    return unpack(packed, tuple(shape))


def _dense(tensors: dict[str, Tensor], name: str, mask: Tensor, path: str | Path) -> Tensor:
    values, active = _take(tensors, name + VALUES, path), int(mask.sum())
    if values.shape != (active,):
        raise ValueError(
            f"{path}: {name!r} has {active} active weights in its mask, its values have shape {tuple(values.shape)}"
        )
    dense = torch.zeros(mask.shape, dtype=values.dtype)
    dense[mask] = values
    return dense


def _take(tensors: dict[str, Tensor], name: str, path: str | Path) -> Tensor:
    if name not in tensors:
        raise ValueError(f"{path} lacks {name!r}")
    return tensors.pop(name)
