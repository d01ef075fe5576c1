"""Whatever a user does, in whatever order: counts, exact zeros, finite weights, and a memory that only grows."""

import copy
import io
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor, nn

import sparseopt as so

BASES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "ham": lambda p: so.HAM(torch.optim.SGD(p, lr=0.05, momentum=0.9), alpha=4.0),
}
METHODS = {
    "static": so.Static(),
    "set": so.SET(total_steps=40, every=2, drop_fraction=0.6),
    "rigl": so.RigL(total_steps=40, every=3, drop_fraction=0.6, grow_from="corrected"),
}


class Training(RuleBasedStateMachine):
    """A small convolutional network in training, and everything that may happen to it."""

    @initialize(
        base=st.sampled_from(sorted(BASES)),
        method=st.sampled_from(sorted(METHODS)),
        correction=st.sampled_from(["none", "layer", "global", "unnormalized"]),
        max_grad_norm=st.sampled_from([None, 0.5, float("inf")]),
        clip=st.sampled_from(["active", "paper"]),
        sparsity=st.floats(0, 0.9),
    )
    def start(self, base: str, method: str, sparsity: float, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv1d(2, 4, 3),
            nn.BatchNorm1d(4),
            nn.ReLU(),
            nn.ConvTranspose1d(4, 6, 2, groups=2),
            nn.Flatten(),
            nn.Linear(42, 3),
        )
        topology = so.sparsify(self.model, sparsity, seed=1)
        self.counts = {name: int(mask.sum()) for name, mask in topology.masks.items()}
        self.optimizer = so.SparseOpt(
            BASES[base](self.model.parameters()), topology, METHODS[method], **options
        )
        self.steps = 0
        self.itop_rate = 0.0

    def backward(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(5, 2, 8)).square().mean()
        loss.backward()
        return loss

    def step(self) -> None:
        self.optimizer.step()
        self.steps += 1

    @rule()
    def ordinary_step(self) -> None:
        self.backward()
        self.step()

    @rule()
    def step_with_a_closure(self) -> None:
        losses: list[float] = []

        def closure() -> float:
            losses.append(self.backward().item())
            return losses[-1]

        assert self.optimizer.step(closure) in losses
        self.steps += 1

    @rule(layer=st.sampled_from(["0.weight", "3.weight", "5.weight"]))
    def step_without_the_gradient_of_a_layer(self, layer: str) -> None:
        self.backward()
        self.optimizer.topology.parameters[layer].grad = None
        self.step()

    @rule()
    def step_without_any_gradient(self) -> None:
        self.optimizer.zero_grad()
        self.step()

    @rule(value=st.sampled_from([float("inf"), float("nan")]))
    def step_with_a_bad_gradient_of_inactive_weights(self, value: float) -> None:
        if self.optimizer.clip == "paper" and self.optimizer.max_grad_norm == 0.5:
            return  # the norm of the dense gradient is not finite, and clipping by it spoils everything
        self.backward()
        for name, mask in self.optimizer.topology.masks.items():
            grad = self.optimizer.topology.parameters[name].grad
            if grad is not None:
                grad[~mask] = value
        self.step()

    @rule()
    def save_and_load(self) -> None:
        file = io.BytesIO()
        torch.save(self.optimizer.state_dict(), file)
        file.seek(0)
        self.optimizer.load_state_dict(torch.load(file, weights_only=True))

    @rule()
    def go_on_with_a_copy(self) -> None:
        self.model, self.optimizer = copy.deepcopy((self.model, self.optimizer))

    @rule(factor=st.sampled_from([0.5, 2.0]))
    def change_the_learning_rate(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = min(group["lr"] * factor, 0.1)

    @rule(layer=st.sampled_from([0, 3, 5]), trainable=st.booleans())
    def freeze_or_thaw(self, layer: int, trainable: bool) -> None:
        self.model[layer].requires_grad_(trainable)

    @invariant()
    def exactly_sparse(self) -> None:
        topology = self.optimizer.topology
        for name, mask in topology.masks.items():
            assert int(mask.sum()) == self.counts[name] == topology.active(name)
            parameter = topology.parameters[name]
            for tensor in (parameter.detach(), *self.optimizer.state[parameter].values()):
                if tensor.shape == parameter.shape:
                    assert tensor.isfinite().all()
                    assert not tensor[~mask].any()

    @invariant()
    def remembers(self) -> None:
        assert self.optimizer.steps == self.steps
        rate = self.optimizer.topology.itop_rate()
        assert rate >= self.itop_rate
        self.itop_rate = rate


TestTraining = Training.TestCase
TestTraining.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
