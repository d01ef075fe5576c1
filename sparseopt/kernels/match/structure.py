"""What a trace of a model relies on: if any of it changes, the trace is stale."""

from collections.abc import Iterable

from torch import nn

from sparseopt.kernels.match.modules import has_hooks, has_own_forward

Modes = tuple[bool, ...]

SETTINGS = (
    *("stride", "padding", "dilation", "groups", "padding_mode", "kernel_size"),
    *(
        "ceil_mode",
        "count_include_pad",
        "divisor_override",
        "output_size",
        "approximate",
        "start_dim",
        "end_dim",
    ),
)  # of torch's modules, that are read once; others are read at every call


class Structure:
    """Some modules of a model: their classes, settings, children and parameters, and whether they have to be called."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(modules)
        self._children = [dict(module._modules) for module in self._modules]
        self._parameters = [
            list(module._parameters.values()) for module in self._modules
        ]  # referenced, so that no id below is reused
        self._settings = [[name for name in SETTINGS if name in module.__dict__] for module in self._modules]
        self._kinds = self._kinds_now()

    def holds(self) -> bool:
        now = (module._modules for module in self._modules)
        same = all(each == before for each, before in zip(now, self._children, strict=True))
        return same and self._kinds == self._kinds_now()

    def modes(self) -> Modes:
        """Which modules are in training: constants in a trace."""
        return tuple([module.training for module in self._modules])

    def _kinds_now(self) -> list[object]:
        return [
            (
                *(type(module), has_hooks(module), has_own_forward(module)),
                *map(id, module._parameters.values()),
                *(module.__dict__[name] for name in names),
            )
            for module, names in zip(self._modules, self._settings, strict=True)
        ]
