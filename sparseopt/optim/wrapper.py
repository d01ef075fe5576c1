"""An optimizer around an optimizer: everything a user can ask of `torch.optim.Optimizer`, answered by the one inside.

Parameter groups, state and defaults are the base optimizer's own objects, so schedulers, scalers and checkpoints see what they
would see without the wrapper. A subclass implements `step`, and whatever it adds to the saved state.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, overload

from torch.optim import LBFGS, Optimizer

StateDict = dict[str, Any]


def _of_base(name: str) -> Any:
    """An attribute that is the base optimizer's own, also after that has replaced the object (as loading a state does)."""
    return property(
        lambda self: getattr(self.base, name), lambda self, value: setattr(self.base, name, value)
    )


class OptimizerWrapper(Optimizer):
    """Base of the optimizers in this package.

    `outermost` says that no other wrapper may go around this one; `_saved` names the attributes that pickling and deepcopy
    keep.
    """

    base: Optimizer
    outermost: ClassVar[bool] = False
    _saved: tuple[str, ...] = ("base",)

    def __init__(self, base: Optimizer) -> None:
        if not isinstance(base, Optimizer):
            raise TypeError(f"base must be a torch.optim.Optimizer, got {type(base).__name__}")
        if isinstance(base, OptimizerWrapper) and base.outermost:
            name = type(base).__name__
            raise TypeError(
                f"{name} must be the outermost optimizer, one a network: {name}(HAM(base), topology, method)"
            )
        # Optimizer.__init__ would collect parameter groups of its own; what it does besides, it also does on unpickling.
        super().__setstate__({"base": base})

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self._saved}

    param_groups = _of_base("param_groups")
    state = _of_base("state")
    defaults = _of_base("defaults")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What else the base optimizer has for its users, such as train() and eval() of a schedule-free one."""
            if name.startswith("_") or "base" not in self.__dict__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self.base, name)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.base.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        return self.base.step(closure)

    def state_dict(self) -> StateDict:
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        state = self.base.state_dict() | self._own_state()
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, state)
            state = state if changed is None else changed
        return state

    def load_state_dict(self, state_dict: StateDict) -> None:
        state = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state)
            state = state if changed is None else changed
        self._check_own_state(state)
        self.base.load_state_dict(state)
        self._load_own_state(state)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _own_state(self) -> StateDict:
        """What this wrapper adds to the base optimizer's state."""
        return {}

    def _check_own_state(self, state: StateDict) -> None:
        """Raise ValueError, before anything has changed, if `_load_own_state` could not take this state."""

    def _load_own_state(self, state: StateDict) -> None:
        """Take over what `_own_state` added."""


def innermost(base: Optimizer) -> Optimizer:
    """The optimizer inside all wrappers."""
    while isinstance(base, OptimizerWrapper):
        base = base.base
    return base


def states(base: Optimizer) -> Iterator[Mapping[Any, dict[str, Any]]]:
    """The state of an optimizer, and of those that it holds: wrappers of other packages keep it in the one inside."""
    found, waiting = dict[int, Optimizer](), [innermost(base)]
    while waiting:
        optimizer = waiting.pop()
        if id(optimizer) not in found:
            found[id(optimizer)] = optimizer
            waiting += [each for each in vars(optimizer).values() if isinstance(each, Optimizer)]
    of = {id(optimizer.state): optimizer.state for optimizer in found.values()}
    yield from of.values()


def forget_directions(base: Optimizer) -> None:
    """Let LBFGS begin anew: its history is one vector over all weights, and that of a network with other connections."""
    base = innermost(base)
    if isinstance(base, LBFGS):
        base.state.clear()
