"""Why a layer is not among what the kernels run: one sentence a layer, for logs and summaries."""

from collections import Counter
from collections.abc import Iterator, Mapping

from torch import nn
from torch.fx import Graph

from sparseopt.kernels.match.convs import supported
from sparseopt.kernels.match.modules import must_be_called, tied_modules

HOOKED = "it has hooks, or its weight is made anew at every call"


def not_known(module: nn.Module) -> str:
    return f"the kernels run Linear and Conv2d, not {type(module).__name__}"


def layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules with a weight of their own of two axes or more, by name; '' is the model itself."""
    for name, module in model.named_modules():
        if "parametrizations" in name.split("."):
            continue  # what makes the weight of a layer
        if any(each is not None and each.dim() >= 2 for each in module._parameters.values()):
            yield name, module
        elif isinstance(module, nn.Linear | nn.Conv2d):
            yield name, module  # its weight is made by a parametrization


def why_dense(model: nn.Module, graph: Graph) -> dict[str, str]:
    """Of every layer, why the kernels would not run it, as far as it can be told from the layer and its calls alone."""
    tied = tied_modules(model)
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    return {name: _reason(module, calls[name], tied=module in tied) for name, module in layers(model)}


def reasons_in(modules: Mapping[str, nn.Module], graph: Graph, tied: set[nn.Module]) -> dict[nn.Module, str]:
    """The same of the layers that a trace calls."""
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    return {
        module: _reason(module, calls[target], tied=module in tied)
        for target, module in modules.items()
        if any(layer is module for _, layer in layers(module))
    }


def _reason(module: nn.Module, calls: int, *, tied: bool) -> str:
    if not isinstance(module, nn.Linear | nn.Conv2d):
        return not_known(module)
    if calls == 0:
        return "its parent does not call it as a module that can be seen in a trace"
    if calls > 1:
        return f"it is called {calls} times"
    if tied:
        return "it shares a parameter with another module"
    if must_be_called(module):
        return HOOKED
    if isinstance(module, nn.Conv2d) and not supported(module):
        return f"the kernels run no convolution with {_unusual(module)}"
    return "what is around it cannot run on the kernels"


def _unusual(module: nn.Conv2d) -> str:
    usual = {"groups": (1,), "dilation": ((1, 1),), "stride": ((1, 1), (2, 2)), "padding_mode": ("zeros",)}
    found = [
        f"{name}={getattr(module, name)!r}"
        for name, known in usual.items()
        if getattr(module, name) not in known
    ]
    return ", ".join(found) or f"padding={module.padding!r}"
