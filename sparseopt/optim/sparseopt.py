"""SparseOpt: sparse training with skew-corrected gradients, around any optimizer.

An ordinary step multiplies the gradient of each sparse weight by its mask and by its neuron's factor, clips if asked, and
lets the base optimizer move the weights. A step at which the method is due moves connections instead of weights:

    loss.backward()            the gradient, averaged over the ranks; zero outside the masks, unless the step reads all of it
    optimizer.step()
      due?  yes  ->            the method's next mask of every layer; optimizer state of dropped and grown weights := 0,
                               grown weights := 0, factors computed anew; no weight moves, except under methods of which
                               `moves_weights` says that an ordinary step comes first
            no   ->            mask, correct, clip; base optimizer step; inactive weights and their state stay exactly 0

Weight decay, momentum and the like remain the base optimizer's business.

>>> import torch, sparseopt as so
>>> model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.BatchNorm1d(50), torch.nn.ReLU(), torch.nn.Linear(50, 2))
>>> topology = so.sparsify(model, sparsity=0.9)
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
>>> optimizer = so.SparseOpt(optimizer, topology, so.RigL(total_steps=1000))
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from sparseopt.methods import Method, WeightMethod
from sparseopt.methods.view import Memory
from sparseopt.optim.agreement import check_agreement
from sparseopt.optim.arrivals import Arrivals
from sparseopt.optim.asleep import Asleep, trains_inactive
from sparseopt.optim.configuration import configuration, warn_of_changes
from sparseopt.optim.connections import NotFinite, next_masks, view_of
from sparseopt.optim.correction import Correction, check_correction, in_force
from sparseopt.optim.cut import CutAtStart
from sparseopt.optim.decay import check_correct_decay, correct_decay
from sparseopt.optim.factors import factors_now, fixed_factors, sparse_parameters
from sparseopt.optim.fit import (
    check_follows,
    check_free,
    check_method,
    check_parameters,
    claim_base,
    refuse_capture,
)
from sparseopt.optim.gradients import PREPARE
from sparseopt.optim.terms import add_terms, reads_gradient, show_gradients
from sparseopt.optim.told import tell_of_correction, tell_of_frozen, tell_of_start
from sparseopt.optim.tried import elementwise_state
from sparseopt.optim.wrapper import OptimizerWrapper, StateDict, forget_directions, states
from sparseopt.optim.written import Written
from sparseopt.topology import Topology
from sparseopt.topology.sharding import local, shard_like
from sparseopt.topology.storage import hold

log = logging.getLogger(__name__)

KEY = "sparseopt"  # where in the state dict our own part lies


class SparseOpt(OptimizerWrapper):
    """A `torch.optim.Optimizer` that trains a sparse network with any base optimizer.

    As clipping does, a step may change the gradients in place: call `zero_grad` before the next backward pass.

    Args:
        base: the optimizer that moves the weights; it must hold all parameters of the topology.
        topology: what `sparsify` returned.
        method: `Static()`, `SET(...)`, `RigL(...)` or your own.
        correction: "auto", which is "layer" where a layer's output goes into BatchNorm, and "none" for methods that go by
            gradients, such as RigL (see `sparseopt.optim.correction`); "layer" (the paper) for all; "global" and
            "overall" (other readings of it, see `skew_factors`), "unnormalized", "measured" and "angular" (by the norms
            of the weights at each step, see `sparseopt.optim.measured`), "none" (plain dynamic sparse training), or a
            function `topology -> {name: one factor a neuron}`. Adam and its kin divide such factors out again: with them
            it has next to no effect.
        correct_decay: let the correction scale weight decay as well (see `sparseopt.optim.decay`).
        max_grad_norm: renormalise the gradients to this global norm at most; `inf` only measures `grad_norm`.
        clip: what the norm is taken over, "active" or "paper" (see `sparseopt.optim.gradients`).

    Attributes:
        steps: optimizer steps so far, updates of the topology included.
        grad_norm: the norm before clipping at the last ordinary step, a tensor; None unless `max_grad_norm` is set.
        memory: what the method remembers from step to step.
    """

    outermost = True
    _saved = (
        *("base", "topology", "_method", "correction", "correct_decay", "max_grad_norm", "clip"),
        *("steps", "grad_norm", "memory", "_asleep", "_waiting", "_warned"),
    )

    def __init__(
        self,
        base: Optimizer,
        topology: Topology,
        method: Method,
        *,
        correction: Correction = "auto",
        correct_decay: bool = False,
        max_grad_norm: float | None = None,
        clip: Literal["active", "paper"] = "active",
    ) -> None:
        super().__init__(base)
        if not isinstance(topology, Topology):
            raise TypeError(f"topology must be what sparsify returned, got {type(topology).__name__}")
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive or None, got {max_grad_norm}")
        if clip not in PREPARE:
            raise ValueError(f"clip must be 'active' or 'paper', got {clip!r}")
        check_parameters(base, topology)
        check_free(base)
        check_method(method, base, topology)
        topology.follow_parameters()
        check_correction(correction, topology)
        if correct_decay:
            check_correct_decay(base)
        tell_of_correction(base, topology, method, correction)
        tell_of_frozen(topology, method)
        self.topology = topology
        self._claim()  # after all checks: a failed attempt, alive in its traceback, must hold nothing
        self._method = method
        self.correction: Correction = correction
        self.correct_decay = correct_decay
        self.max_grad_norm = max_grad_norm
        self.clip = clip
        self.steps = 0
        self.grad_norm: Tensor | None = None
        self._seen: dict[str, Tensor] | None = None  # at an update, the gradients before they are masked
        self.memory = Memory()
        self._asleep = Asleep()
        self._waiting = False  # an update was due, but the gradients were not finite
        self._warned = False
        self._elementwise = elementwise_state(base)
        self._cut = CutAtStart()
        self._written = Written()
        self._settle()
        if method.due(0):
            self._start()
        self._arrivals = Arrivals(self.topology)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._seen = None
        self._elementwise = elementwise_state(self.base)
        self._cut, self._written = CutAtStart(), Written()
        self._claim()
        self._settle()
        self._arrivals = Arrivals(self.topology)

    def _claim(self) -> None:
        self.topology.claim(self)
        claim_base(self.base, self)

    @property
    def method(self) -> Method:
        """How connections move. Another one may be set in the middle of a training: it goes on from these masks, and its
        schedule counts the steps from the beginning of this optimizer. `correction="auto"` follows it, and the log says how."""
        return self._method

    @method.setter
    def method(self, method: Method) -> None:
        check_method(method, self.base, self.topology)
        check_follows(method, self._method)
        before = in_force(self.correction, self._method)
        self._method, self.memory, self._waiting = method, Memory(), False
        self._settle()
        if in_force(self.correction, method) != before:
            tell_of_correction(self.base, self.topology, method, self.correction)
            tell_of_frozen(self.topology, method)

    @property
    def factors(self) -> dict[str, Tensor]:
        """The correction in force, {name: one factor a neuron}; empty for "none"."""
        return dict(self._factors) or factors_now(self.topology, in_force(self.correction, self._method))

    def __repr__(self) -> str:
        correction = in_force(self.correction, self.method)
        what = f"{self.method}, {self.topology}, correction={correction!r}"
        return f"{type(self).__name__}({what}) around {self.base}"

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @_disable_dynamo  # the compiler loses what step changes in an optimizer's attributes; a compiled base stays compiled
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step: of the connections where the method is due, of the weights otherwise. Returns the closure's loss."""
        if self.topology.follow_parameters() or self._version != self.topology.version:
            self._settle()
        self._begin_step()
        self.steps += 1
        due = self.method.due(self.steps) or self._waits_for(self.steps)
        if due and not self.method.moves_weights:
            loss = self._move_connections_or_weights(closure)
        else:
            self._seen = {} if due else None
            loss = self._move_weights(closure)
            if due:
                self._move_connections(self._seen)
            self._seen = None
            self._fall_asleep()
        self.topology.dense_grads.forget()
        self._arrivals.await_all()
        self._tell_what_is_wanted()
        if self.topology.dense_grads.wanted:  # by the next step, of another backward pass
            self.topology.dense_grads.note_spent(self.topology.parameters.values())
        self._written.note(self.topology.storage)
        return loss

    def _begin_step(self) -> None:
        refuse_capture(self.topology, self.method)
        if not isinstance(self.method, WeightMethod):
            self._written.hold(self.topology.storage)
        self._cut = CutAtStart()

    def _start(self) -> None:
        """The method has masks of its own to begin with. What they cut may have been loaded, with masks still to come."""
        self._asleep.woken = True
        before = self.topology.sparsity()
        with self._cut.watching({} if trains_inactive(self.method) else self.topology.storage):
            self._move_connections()
        self._fall_asleep()
        tell_of_start(self.method, before, self.topology)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.topology.dense_grads.forget()
        self._arrivals.await_all()

    def _move_connections_or_weights(self, closure: Callable[[], float] | None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        return loss if self._move_connections() else self._move_weights(closure)

    def _move_weights(self, closure: Callable[[], float] | None) -> float | None:
        if closure is None:
            self._prepare()
            loss = self.base.step()
        else:
            loss = self.base.step(self._preparing(closure))
        self._hold_to_masks()
        return loss

    def _preparing(self, closure: Callable[[], float]) -> Callable[[], float]:
        """The user's closure, with the gradients prepared each time it has computed them."""

        def prepared() -> float:
            self._fall_asleep()
            self.topology.dense_grads.forget()
            loss = closure()
            self._prepare()
            return loss

        return prepared

    def _see_gradients(self) -> None:
        """Keep, for an update at this step, the gradients as they are before they are masked and clipped."""
        if self._seen is not None and self.method.uses_gradient:
            self._seen = {name: grad.clone() for name, grad in self._gradients().items()}

    def _prepare(self) -> None:
        self._see_gradients()
        if trains_inactive(self.method):
            self._asleep.wake(self.topology)
        method = self.method if isinstance(self.method, WeightMethod) else None
        gradients = self._gradients() if method else {}
        if method:
            show_gradients(method, self.topology, self.steps, self.memory, gradients)
        everything = (parameter for group in self.param_groups for parameter in group["params"])
        self.grad_norm = PREPARE[self.clip](self._sparse, everything, self.max_grad_norm)
        if self.correct_decay:
            correct_decay(self.base, self._sparse)
        if method:
            add_terms(method, self.topology, self.steps, self.memory, gradients, self.base, self.learning)

    def _gradients(self) -> dict[str, Tensor]:
        """Of the sparse layers; those that are frozen, or that the loss does not reach, have none."""
        parameters = self.topology.parameters.items()
        return {name: parameter.grad for name, parameter in parameters if parameter.grad is not None}

    def _fall_asleep(self) -> None:
        if isinstance(self.method, WeightMethod):
            self._asleep.sleep(self.topology, self.method.keeps_inactive)

    @torch.no_grad()
    def _hold_to_masks(self) -> None:
        """Whatever the base optimizer did, inactive weights and their state are exactly zero afterwards."""
        hold(
            (tensor, each.mask)
            for each in self._sparse
            if each.mask is not None and each.storage.parameter.grad is not None
            for tensor in self._entries_of(each.storage.parameter)
        )

    @torch.no_grad()
    def _move_connections(self, seen: Mapping[str, Tensor] | None = None) -> bool:
        """Update the topology. False if it has to wait because a gradient that would decide is not finite.

        `seen`: the gradients as they were before the weights moved; by default, those that are there.
        """
        topology, method = self.topology, self.method
        self._asleep.recall(topology)
        try:
            new, counts = next_masks(topology, self.method, self.steps, self.factors, seen or {}, self.memory)
        except NotFinite:
            self._waiting = True
            self._warn_once()
            return False
        self._waiting = False
        start = self.steps == 0 and topology.version == 0  # another optimizer may have trained it before
        check_agreement(new, self.steps)
        if isinstance(method, WeightMethod) and method.trains_inactive:
            topology.replace(new, counts, {}, start=start)  # what becomes inactive stays as it is
            stay = self._asleep.choose(topology, method, self.steps, self.memory) if new else {}
            for name, stays in stay.items():
                _, *state = self._entries_of(topology.parameters[name])
                for tensor in state:
                    local(tensor).masked_fill_(~stays, 0)
        else:
            if isinstance(method, WeightMethod):
                self._begin_anew(method, new)
            tensors = {name: self._entries_of(topology.parameters[name]) for name in new}
            topology.replace(new, counts, tensors, start=start)
        forget_directions(self.base)
        self._settle()
        return True

    def _begin_anew(self, method: WeightMethod, names: Iterable[str]) -> None:
        """Set to zero, with their state, the weights of which the method says so."""
        for name in names:
            parameter = self.topology.parameters[name]
            anew = method.anew(view_of(self.topology, name, self.steps, None, self.memory))
            if anew is not None:
                part = local(shard_like(anew, parameter))
                for tensor in self._entries_of(parameter):
                    local(tensor).masked_fill_(part, 0)

    def _settle(self) -> None:
        """Derive from the masks in force what the steps need: factors, and masks as bytes."""
        topology = self.topology
        self.memory.follow(topology.parameters)
        self._asleep.follow(topology)
        correction = in_force(self.correction, self._method)
        self._factors = fixed_factors(topology, correction)
        self._sparse = sparse_parameters(topology, correction, self.clip, self._factors, self._asleep.awake)
        self._version = topology.version
        self._tell_what_is_wanted()

    def learning(self, name: str) -> Tensor:
        """Mask of the weights that learn, on this rank: the active ones, unless the method trains others as well."""
        return self._asleep.awake.get(name, local(self.topology.masks[name]))

    def _tell_what_is_wanted(self) -> None:
        """Must the next backward pass deliver the gradient of inactive weights, too?"""
        by_norm = self.clip == "paper" and self.max_grad_norm is not None
        step = self.steps + 1
        wanted = by_norm or self._waits_for(step) or self.method.needs_dense_grad(step)
        only_learning = trains_inactive(self.method) and not by_norm and not reads_gradient(self.method)
        self.topology.dense_grads.wanted = wanted
        self.topology.dense_grads.learning = self._asleep.awake if only_learning else {}

    def _waits_for(self, step: int) -> bool:
        """Is an update waiting that this step may still make up for? With the end of the schedule it is dropped, unless it
        would bring the layers to their numbers of weights."""
        return self._waiting and (self.method.drop_fraction_at(step) > 0 or self.method.changes_counts())

    def _entries_of(self, parameter: nn.Parameter) -> Iterator[Tensor]:
        """The weights themselves, and all state of the base optimizer that has one entry a weight."""
        yield parameter.detach()
        entries = (entry for state in states(self.base) for entry in state.get(parameter, {}).items())
        for key, value in entries:
            if not isinstance(value, Tensor) or value.shape != parameter.shape or not self._elementwise(key):
                continue
            if value.is_floating_point() or value.is_complex():
                yield value
            elif self.topology.kind() == "packed":
                raise ValueError(
                    f"the optimizer's state {key!r} has a code of {value.dtype} for each weight, which cannot move with "
                    "it: use sparsify(..., storage='dense'), where codes stay in their places"
                )
            # Whole numbers are left alone: in a quantised state they are codes, and code 0 is not the number 0.

    def _warn_once(self) -> None:
        if not self._warned:
            log.warning(
                "step %d: the gradients are not finite, so the topology update waits for the next step at which they are",
                self.steps,
            )
        self._warned = True

    def sparse_state_dict(self) -> StateDict:
        """What `state_dict` holds beyond the base optimizer's state: masks, ITOP union, seed, steps, configuration.

        For those who save `optimizer.base` by other means, such as torch.distributed.checkpoint.
        """
        return {
            "topology": self.topology.state_dict(),
            "storage": self.topology.kind(),
            "steps": self.steps,
            "memory": {"numbers": dict(self.memory.numbers), "layers": self.memory.layers},
            "asleep": self._asleep.state_dict(self.topology),
            "waiting": self._waiting,
            "configuration": self._configuration(),
        }

    def load_sparse_state_dict(self, state: StateDict) -> None:
        """Take over what `sparse_state_dict` gave; the state of another topology is refused and changes nothing."""
        self._check_sparse_state(state)
        warn_of_changes(state["configuration"], self._configuration())
        self.topology.dense_grads.forget()
        self._cut.put_back(self.topology.storage, self.topology.differing(state["topology"]))
        self._written = Written()
        self.topology.load_state_dict(state["topology"])
        self.steps = state["steps"]
        self._waiting = state["waiting"]
        memory = state.get("memory", {})
        layers = {name: dict(tensors) for name, tensors in memory.get("layers", {}).items()}
        self.memory = Memory(dict(memory.get("numbers", {})), layers)
        self._asleep.load_state_dict(state.get("asleep", {}), self.topology)
        self._settle()

    def _check_sparse_state(self, state: StateDict) -> None:
        kinds = {"topology": dict, "steps": int, "waiting": bool, "configuration": dict}
        for key, kind in kinds.items():
            if not isinstance(state.get(key), kind):
                found = "nothing" if key not in state else repr(state[key])[:80]
                raise ValueError(f"damaged optimizer state: {key!r} must be a {kind.__name__}, got {found}")
        saved, here = state.get("storage", "dense"), self.topology.kind()
        if saved != here:
            raise ValueError(
                f"the state was saved with storage={saved!r}, and this topology has storage={here!r}: optimizer state goes on "
                f"in the storage it was saved in; sparsify the model with storage={saved!r} (weights alone go both ways)"
            )
        self.topology.check_state_dict(state["topology"])

    def _own_state(self) -> StateDict:
        return {KEY: self.sparse_state_dict()}

    def _configuration(self) -> dict[str, Any]:
        return configuration(
            self.method,
            correction=in_force(self.correction, self.method),
            correct_decay=self.correct_decay,
            max_grad_norm=self.max_grad_norm,
            clip=self.clip,
        )

    def _check_own_state(self, state: StateDict) -> None:
        if KEY not in state:
            raise ValueError(
                f"the state dict has no {KEY!r} entry: it was saved by another optimizer; load it into the base "
                "optimizer before wrapping that in SparseOpt"
            )
        self._check_sparse_state(state[KEY])

    def _load_own_state(self, state: StateDict) -> None:
        self.load_sparse_state_dict(state[KEY])
