"""The C interface of the library, `csrc/library.cpp`, as ctypes sees it: its structs, and what every function takes.

In a struct or an argument, an address of None says that there is none.
"""

import ctypes
from ctypes import POINTER, Structure

Address, Integer, Real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class Image(Structure):
    """An activation in the lane layout, its sizes without the border."""

    _fields_ = (
        ("data", Address),
        ("blocks", Integer),
        ("height", Integer),
        ("channels", Integer),
        ("width", Integer),
        ("border", Integer),
    )


class Source(Structure):
    """What an activation is made from."""

    _fields_ = (
        ("z", Image),
        ("norm", Address),
        ("shortcut", Image),
        ("shortcut_norm", Address),
        ("shortcut_stride", Integer),
        ("shortcut_offset", Integer),
        ("relu", Integer),
    )


class Backward(Structure):
    """What the backward pass of a convolution reads and where it writes."""

    _fields_ = (
        ("g", Image),
        ("z", Image),
        ("coefficients", Address),
        ("input", Image),
        ("input_norm", Address),
        ("input_relu", Integer),
        ("to", Image),
        ("accumulate", Integer),
        ("shortcut", Image),
        ("shortcut_offset", Integer),
        ("mask", Integer),
        ("input_z", Image),
        ("input_z_norm", Address),
    )


class Pattern(Structure):
    """Lists of active weights and their values."""

    _fields_ = (("start", Address), ("offset", Address), ("value", Address), ("size", Integer))


class Linear(Structure):
    """A layer of a chain; the gradients and `order` are the backward pass's."""

    _fields_ = (
        ("weights", Pattern),
        ("order", Address),
        ("bias", Address),
        ("relu", Integer),
        ("inputs", Integer),
        ("outputs", Integer),
        ("weight_gradient", Address),
        ("bias_gradient", Address),
    )


class Copy(Structure):
    """Active values of a dense tensor; `same` says afterwards whether they are those before."""

    _fields_ = (
        ("dense", Address),
        ("position", Address),
        ("size", Integer),
        ("before", Address),
        ("values", Address),
        ("same", Integer),
    )


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
    )


class Output(Structure):
    """What leaves a frozen region: an image, a mean over all positions, or a linear layer of that mean."""

    _fields_ = (("slot", Integer), ("mean", Integer), ("weights", Weights), ("bias", Address))


class Tables(Structure):
    """A frozen region, see `csrc/network.h`."""

    _fields_ = (
        ("lanes", Integer),
        ("bands", Integer),
        ("floats", Integer),
        ("slot_count", Integer),
        ("layer_count", Integer),
        ("input_count", Integer),
        ("output_count", Integer),
        ("slots", POINTER(Slot)),
        ("layers", POINTER(FrozenConv)),
        ("inputs", POINTER(Integer)),
        ("outputs", POINTER(Output)),
    )


class FrozenLinear(Structure):
    """A layer of a frozen chain, see `csrc/frozen_chain.h`."""

    _fields_ = (("weights", Weights), ("bias", Address), ("relu", Integer))


AnImage = POINTER(Image)

# After the number of threads. All return None, or what went wrong.
FUNCTIONS = {
    "conv_forward": (
        *(AnImage, Integer, POINTER(Source), POINTER(Pattern), Integer, Integer, Integer),
        *(AnImage, Address, Address),
    ),
    "make_activation": (POINTER(Source), AnImage),
    "conv_backward": (
        *(POINTER(Backward), POINTER(Pattern), Address, Integer, Integer, Integer, Integer),
        *(Address, Address),
    ),
    "batch_norm_forward": (
        *(Integer, Integer, Address, Address, Address, Address, Real),
        *(Address, Address, Real, Address, Address),
    ),
    "batch_norm_backward": (Integer, Integer, Address, Address, Address, Address, Address),
    "pack": (Address, Integer, AnImage),
    "unpack": (AnImage, Integer, Address),
    "pool_forward": (AnImage, Integer, Address),
    "pool_backward": (Address, Integer, AnImage, Integer),
    "shortcut_backward": (AnImage, Integer, Integer, AnImage, Integer),
    "finish_gradient": (AnImage, AnImage, AnImage, Address, Integer, Address),
    "tile_samples": (Address, Integer, Integer, Integer, Address),
    "untile_samples": (Address, Integer, Integer, Integer, Address),
    "chain_forward": (Integer, POINTER(Linear), Integer, POINTER(Address)),
    "chain_backward": (Integer, POINTER(Linear), Integer, POINTER(Address), Address, Address),
    "sum_features": (Address, Integer, Integer, Integer, Address),
    "normalise": (Address, Address, Integer, Integer, Integer, Address),
    "sum_gradients": (Address, Address, Address, Integer, Integer, Address, Address),
    "normalise_backward": (Address, Address, Integer, Integer, Integer, Address),
    "gather": (Integer, POINTER(Copy)),
    "nonzeros": (Address, Integer, POINTER(Integer)),
    "scatter": (Integer, POINTER(Copy)),
    "network_new": (POINTER(Tables), POINTER(Address)),
    "network_choose": (Address, Integer, Integer, Integer),
    "network_time": (Address, Integer, Integer, POINTER(Real)),
    "network_run": (Address, Integer, POINTER(Address), POINTER(Address)),
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
    library.sparseopt_use.argtypes, library.sparseopt_use.restype = (Address,), None
    for name in ("sparseopt_network_free", "sparseopt_chain_free"):
        function = library[name]
        function.argtypes, function.restype = (Address,), None
        setattr(library, name, function)
    library.sparseopt_tile.argtypes = (Integer, Integer, *[POINTER(Integer)] * 3)
    library.sparseopt_tile.restype = Integer
