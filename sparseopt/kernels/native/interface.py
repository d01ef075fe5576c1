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


class Output(Structure):
    """What leaves a frozen region: an image, a mean over all positions, or a linear layer of that mean."""

    _fields_ = (
        ("slot", ctypes.c_int),
        ("mean", ctypes.c_bool),
        ("weight", Address),
        ("bias", Address),
        ("features", Integer),
    )


class Tables(Structure):
    """A frozen region, see `csrc/network.h`."""

    _fields_ = (
        ("bands", Integer),
        ("floats", Integer),
        ("slot_count", Integer),
        ("layer_count", Integer),
        ("input_count", Integer),
        ("output_count", Integer),
        ("slots", Address),
        ("layers", Address),
        ("weights", Pattern),
        ("bias", Address),
        ("inputs", Address),
        ("outputs", POINTER(Output)),
    )


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
    "network_run": (Address, Integer, POINTER(Address), POINTER(Address)),
}


def declare(library: ctypes.CDLL) -> None:
    """Give the library's functions their types."""
    for name, arguments in FUNCTIONS.items():
        function = library[f"sparseopt_{name}"]
        function.argtypes, function.restype = (Integer, *arguments), ctypes.c_char_p
        setattr(library, f"sparseopt_{name}", function)
    library.sparseopt_lanes.argtypes, library.sparseopt_lanes.restype = (), Integer
    library.sparseopt_use.argtypes, library.sparseopt_use.restype = (Address,), None
    library.sparseopt_network_free.argtypes, library.sparseopt_network_free.restype = (Address,), None
