"""The C interface of the library, `csrc/library.cpp`, as ctypes sees it.

Its structs are rows of 64-bit words, addresses and integers; an address of zero says that there is none. What a training step
hands over again and again is made by `words` from numbers in the order of the struct's fields: ctypes' own structures take longer
than everything else about a call.
"""

import ctypes
import struct
from ctypes import POINTER, Structure
from typing import NamedTuple

Address, Integer, Real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
Words = ctypes.c_char_p


PACK = [struct.Struct(f"{count}q").pack for count in range(64)]


def words(*numbers: int) -> bytes:
    count = len(numbers)
    return PACK[count](*numbers) if count < len(PACK) else struct.pack(f"{count}q", *numbers)


class Image(NamedTuple):
    """An activation in the lane layout, its sizes without the border."""

    data: int
    blocks: int
    height: int
    channels: int
    width: int
    border: int
    half: int


NONE = Image(0, 0, 0, 0, 0, 0, 0)


class Weights(Structure):
    """The entries of a weight that are not zero, in the order of memory."""

    _fields_ = (
        ("position", Address),
        ("value", Address),
        ("size", Integer),
        ("out", Integer),
        ("into", Integer),
        ("height", Integer),
        ("width", Integer),
    )


class FrozenConv(Structure):
    """A convolution of a frozen region, see `csrc/inference.h`."""

    _fields_ = (
        ("weights", Weights),
        ("bias", Address),
        ("input", Integer),
        ("output", Integer),
        ("shortcut", Integer),
        ("stride", Integer),
        ("padding_rows", Integer),
        ("padding_columns", Integer),
        ("shortcut_stride", Integer),
        ("shortcut_offset", Integer),
        ("relu", Integer),
        ("pool", Integer),
    )


class Slot(Structure):
    """Where a value of a frozen region is in the arena."""

    _fields_ = (
        ("offset", Integer),
        ("channels", Integer),
        ("height", Integer),
        ("width", Integer),
        ("border", Integer),
        ("rows", Integer),
        ("columns", Integer),
        ("bands", Integer),
        ("strips", Integer),
        ("group", Integer),
    )


class Segment(Structure):
    """Layers of a frozen region, up to `end`, that run with images cut in one way."""

    _fields_ = (("end", Integer), ("bands", Integer))


class FrozenOutput(Structure):
    """What leaves a frozen region: an image, a mean over all positions, or a linear layer of that mean."""

    _fields_ = (("slot", Integer), ("mean", Integer), ("weights", Weights), ("bias", Address))


class Tables(Structure):
    """A frozen region, see `csrc/network.h`."""

    _fields_ = (
        ("lanes", Integer),
        ("floats", Integer),
        ("segment_count", Integer),
        ("slot_count", Integer),
        ("layer_count", Integer),
        ("input_count", Integer),
        ("output_count", Integer),
        ("segments", POINTER(Segment)),
        ("slots", POINTER(Slot)),
        ("layers", POINTER(FrozenConv)),
        ("inputs", POINTER(Integer)),
        ("outputs", POINTER(FrozenOutput)),
    )


class FrozenLinear(Structure):
    """A layer of a frozen chain, see `csrc/frozen_chain.h`."""

    _fields_ = (("weights", Weights), ("bias", Address), ("activation", Integer))


# After the number of threads. All return None, or what went wrong.
FUNCTIONS = {
    "conv_forward": (
        *(Words, Integer, Words, Words, Integer, Integer, Integer),
        *(Words, Address, Address, Integer, Integer),
    ),
    "make_activation": (Words, Words),
    "conv_backward": (
        *(Words, Words, Address, Integer, Integer, Integer, Integer),
        *(Address, Address, Integer, Words),
    ),
    "conv_dense_gradient": (Words, Integer, Words, Integer, Address),
    "batch_norm_forward": (
        *(Integer, Integer, Address, Address, Address, Address, Real),
        *(Address, Address, Real, Address, Address),
    ),
    "batch_norm_backward": (Integer, Integer, Address, Address, Address, Address, Address),
    "pack": (Address, Integer, Integer, Words),
    "unpack": (Words, Integer, Address),
    "pool_forward": (Words, Integer, Address),
    "pool_backward": (Address, Integer, Words, Integer),
    "shortcut_backward": (Words, Integer, Integer, Words, Integer),
    "finish_gradient": (Words, Words, Words, Address, Integer, Address),
    "tile_samples": (Address, Integer, Integer, Integer, Integer, Address),
    "untile_samples": (Address, Integer, Integer, Integer, Address),
    "chain_forward": (Integer, Words, Integer, Words),
    "chain_backward": (Integer, Words, Integer, Words, Address, Address),
    "sum_features": (Address, Integer, Integer, Integer, Address),
    "normalise": (Address, Address, Integer, Integer, Integer, Address),
    "sum_gradients": (Address, Address, Address, Integer, Integer, Address, Address),
    "normalise_backward": (Address, Address, Integer, Integer, Integer, Address),
    "gather": (Integer, Words, Words),
    "nonzeros": (Address, Integer, POINTER(Integer)),
    "scatter": (Integer, Words),
    "network_new": (POINTER(Tables), POINTER(Address)),
    "network_choose": (Address, Integer, Integer, Integer, Integer),
    "network_time": (Address, Integer, Integer, POINTER(Real)),
    "network_run": (Address, Integer, POINTER(Address), POINTER(Address)),
    "max_pool": (Words, Address, Address),
    "chain_new": (Integer, Integer, POINTER(FrozenLinear), POINTER(Address)),
    "chain_choose": (Address, Integer, Integer),
    "chain_run": (Address, Integer, Address, Address),
}


def declare(library: ctypes.CDLL) -> None:
    """Give the library's functions their types."""
    for name, arguments in FUNCTIONS.items():
        function = library[f"sparseopt_{name}"]
        function.argtypes, function.restype = (Integer, *arguments), ctypes.c_char_p
        setattr(library, f"sparseopt_{name}", function)
    library.sparseopt_lanes.argtypes, library.sparseopt_lanes.restype = (), Integer
    library.sparseopt_training_tiles.argtypes, library.sparseopt_training_tiles.restype = (Integer,), Integer
    library.sparseopt_use.argtypes, library.sparseopt_use.restype = (Address,), None
    for name in ("sparseopt_network_free", "sparseopt_chain_free"):
        function = library[name]
        function.argtypes, function.restype = (Address,), None
        setattr(library, name, function)
    library.sparseopt_tile.argtypes = (Integer, Integer, *[POINTER(Integer)] * 3)
    library.sparseopt_tile.restype = Integer
