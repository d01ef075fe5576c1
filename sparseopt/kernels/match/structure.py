"""What a trace of a model relies on, by which one can tell whether the model is still the one that was traced."""

from collections.abc import Iterator

from torch import nn

from sparseopt.kernels.match.rewrite import must_be_called

Modes = tuple[bool, ...]


class Structure:
    """The modules of a model, their classes and children, and whether they have to be called."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._children = [dict(module._modules) for module in self._modules]
        self._kinds = self._kinds_now()

    def holds(self) -> bool:
        now = (module._modules for module in self._modules)
        same = all(each == before for each, before in zip(now, self._children, strict=True))
        return same and self._kinds == self._kinds_now()

    def modes(self) -> Modes:
        """Which modules are in training: constants in a trace."""
        return tuple([module.training for module in self._modules])

    def parameters(self) -> Iterator[nn.Parameter]:
        for module in self._modules:
            for parameter in module._parameters.values():
                if parameter is not None:
                    yield parameter

    def _kinds_now(self) -> list[tuple[type, bool]]:
        return [(type(module), must_be_called(module)) for module in self._modules]
