"""Files of tensors in the format of safetensors, read and written with nothing but torch.

    8 bytes     length of the header, little-endian
    header      JSON: {"__metadata__": {...}, NAME: {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]}, ...}
    the rest    the tensors' bytes, one after the other

There is no code in such a file. Of one that comes from elsewhere nothing is believed: lengths, offsets and types are checked
before memory is made from them.
"""

import ctypes
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LARGEST = 2**48  # of an axis: numbers beyond that cannot be multiplied
LONGEST_HEADER = 100_000_000


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a file with these tensors."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts: list[bytes] = []
    end = 0
    by_size = sorted(
        tensors, key=lambda name: (-tensors[name].element_size(), name)
    )  # keeps all of them aligned
    for name in by_size:
        tensor = tensors[name].detach().cpu().contiguous()
        if tensor.dtype not in NAMES:
            raise ValueError(f"{name!r} has dtype {tensor.dtype}, which a file of tensors cannot hold")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        parts.append(ctypes.string_at(tensor.data_ptr(), end - begin) if end > begin else b"")
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def decode(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, and its metadata. Raises ValueError for anything that is not such a file."""
    data = bytearray(Path(path).read_bytes())
    try:
        length = int.from_bytes(data[:8], "little")
        _require(len(data) >= 8 and length <= min(len(data) - 8, LONGEST_HEADER), "its header is cut off")
        header = json.loads(data[8 : 8 + length].decode())
        _require(isinstance(header, dict), "its header is no table")
        metadata = header.pop("__metadata__", None) or {}
        _require(
            isinstance(metadata, dict) and all(isinstance(each, str) for each in metadata.values()),
            "its metadata is not text",
        )
        start, used = 8 + length, 0
        tensors: dict[str, Tensor] = {}
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, stop = entry["data_offsets"]
            _require(begin == used, f"{name!r} does not begin where the tensor before it ends")
            tensors[name] = _tensor(data, start + begin, stop - begin, entry, name)
            used = stop
        _require(start + used == len(data), "it is longer or shorter than its header says")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RuntimeError) as error:
        raise ValueError(f"{path} is not a file of tensors: {error}") from error
    return tensors, metadata


def _tensor(data: bytearray, offset: int, size: int, entry: Mapping[str, Any], name: str) -> Tensor:
    dtype, shape = DTYPES.get(entry["dtype"]), entry["shape"]
    if dtype is None:
        raise ValueError(f"{name!r} has the unknown dtype {entry['dtype']!r}")
    _require(all(type(each) is int and each >= 0 for each in shape), f"{name!r} has the shape {shape!r:.80}")
    count = math.prod(shape)
    _require(count * dtype.itemsize == size and offset + size <= len(data), f"{name!r} has {size} bytes")
    _require(all(each < LARGEST for each in shape), f"{name!r} has the shape {shape!r:.80}")
    if not count:
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(data, dtype=torch.uint8, count=size, offset=offset)
    return raw.clone().view(dtype).view(shape)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)
