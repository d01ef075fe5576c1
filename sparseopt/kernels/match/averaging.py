"""Average pooling as the kernels run it: a convolution in which every channel reads itself alone, with constant weights."""

import inspect

import torch
from torch import nn
from torch.fx import Node
from torch.nn.utils import skip_init

Size = int | tuple[int, int]

ARGUMENTS = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(nn.AvgPool2d).parameters.items()
    if name in ARGUMENTS
}


def pooling_options(node: Node, module: nn.Module | None) -> tuple[Size, Size, Size] | None:
    """Kernel size, stride and padding of a pooling, called as a module or as a function; None if it is more than these."""
    if isinstance(module, nn.AvgPool2d):
        given = {name: getattr(module, name) for name in ARGUMENTS}
    else:
        given = {**DEFAULTS, **dict(zip(ARGUMENTS, node.args[1:], strict=False)), **node.kwargs}
    kernel, padding = given["kernel_size"], given["padding"]
    stride = kernel if given["stride"] is None else given["stride"]
    sizes = [tuple(each) if isinstance(each, list) else each for each in (kernel, stride, padding)]
    if not all(isinstance(each, int) or _is_pair(each) for each in sizes):
        return None  # computed from the input, as in avg_pool2d(x, x.shape[3])
    uneven_shares = padding not in (0, (0, 0)) and not given["count_include_pad"]
    if given["ceil_mode"] or given["divisor_override"] is not None or uneven_shares:
        return None
    return sizes[0], sizes[1], sizes[2]


def averaging(channels: int, kernel: Size, stride: Size, padding: Size) -> nn.Conv2d:
    options = {"bias": False, "device": "cpu", "dtype": torch.float32}
    # without weights to begin with: drawing them would take numbers from the generator that the user's model draws from
    module = skip_init(nn.Conv2d, channels, channels, kernel, stride, padding, **options)
    assert isinstance(module, nn.Conv2d)
    module.requires_grad_(False)
    with torch.no_grad():
        module.weight.zero_()
        module.weight.diagonal().fill_(1 / (module.kernel_size[0] * module.kernel_size[1]))
    return module


def _is_pair(size: object) -> bool:
    return isinstance(size, tuple) and len(size) == 2 and all(isinstance(each, int) for each in size)
