"""Random networks and random training sequences on the kernels, against float64 and against dense kernels. All seeded."""

import copy
import random
from functools import partial
from typing import Literal, NamedTuple

import pytest
import torch
from kernels.conftest import Reference, on_kernels, results
from torch import Tensor, nn
from torch.nn import functional as F

import sparseopt as so

NETWORKS = 150
SEQUENCES = 40
SLACK = 4.0  # the bound is a typical size of rounding errors, estimated from three draws


class Step(NamedTuple):
    """What a random network does next: to which of the values so far, with which module or which other value."""

    kind: str
    value: int
    other: int = 0


class RandomNetwork(nn.Module):
    """Runs its plan. Values are images (batch, channels, height, width), or vectors once they have been averaged."""

    def __init__(self, parts: list[nn.Module], plan: list[Step]) -> None:
        super().__init__()
        self.parts, self.plan = nn.ModuleList(parts), tuple(plan)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for kind, value, other in self.plan:
            now = values[value]
            if kind == "module":
                now = self.parts[other](now)
            elif kind == "relu":
                now = torch.relu(now)
            elif kind == "relu in place":
                now = now.relu_()
            elif kind == "clamp in place":
                now = now.clamp_(-2, 2)
            elif kind == "tanh":
                now = torch.tanh(now)
            elif kind == "add":
                now = now + values[other]
            elif kind == "add in place":
                now += values[other]
            elif kind == "subsample":
                now = now[:, :, ::2, ::2]
            elif kind == "pad":
                now = F.pad(now, (0, 0, 0, 0, 0, other))
            elif kind == "average":
                now = F.avg_pool2d(now, 2)
            elif kind == "mean":
                now = now.mean((2, 3))
            values.append(now)
        return values[-1]


class Builder:
    """Adds random steps, and keeps the shape of every value by running them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.batch, self.channels = self.random.choice([1, 3, 8, 9]), self.random.choice([1, 3, 4])
        self.size = (self.random.randint(5, 12), self.random.randint(5, 12))
        self.parts: list[nn.Module] = []
        self.plan: list[Step] = []
        self.shapes: list[torch.Size] = [torch.Size([self.batch, self.channels, *self.size])]

    def input(self, seed: int) -> Tensor:
        return torch.randn(self.shapes[0], generator=torch.Generator().manual_seed(seed))

    def network(self) -> nn.Module:
        """Convolutions with whatever is between them, then perhaps linear layers."""
        for _ in range(self.random.randint(2, 7)):
            self._image_step()
        if self.random.random() < 0.6:
            self._add(Step("mean", self._last()))
            for _ in range(self.random.randint(1, 4)):
                self._vector_step()
        return RandomNetwork(self.parts, self.plan)

    def _last(self) -> int:
        return len(self.shapes) - 1

    def _image_step(self) -> None:
        at = self._last() if self.random.random() < 0.8 else self.random.randrange(len(self.shapes))
        channels, size = self.shapes[at][1], min(self.shapes[at][2:])
        choice = self.random.random()
        if choice < 0.5 or size < 3:
            kernel = self.random.choice([k for k in (1, 2, 3, 5) if k <= size])
            out = self.random.choice([channels, 4, 7])
            padding = self.random.randint(0, kernel - 1)
            conv = nn.Conv2d(
                channels, out, kernel, self.random.choice([1, 1, 2]), padding, bias=self._maybe()
            )
            self._module(at, conv)
            if self._maybe():
                self._module(self._last(), nn.BatchNorm2d(out, affine=self._maybe()))
            if self._maybe():
                self._relu(self._last())
        elif choice < 0.75:
            self._sum(at)
        else:
            kind = self.random.choice(
                ["relu", "tanh", "average", "clamp in place", "relu in place", "max", "subsample", "pad"]
            )
            if kind == "max":
                self._module(at, nn.MaxPool2d(2))
            else:
                self._add(Step(kind, at, 2 if kind == "pad" else 0))

    def _vector_step(self) -> None:
        features, out = self.shapes[-1][1], self.random.choice([5, 8, 16])
        self._module(self._last(), nn.Linear(features, out, bias=self._maybe()))
        if self._maybe() and self.batch > 1:
            self._module(self._last(), nn.BatchNorm1d(out))
        if self._maybe():
            self._relu(self._last())
        elif self._maybe():
            self._add(Step("tanh", self._last()))

    def _relu(self, at: int) -> None:
        if self._maybe():
            self._module(at, nn.ReLU(inplace=self._maybe()))
        else:
            self._add(Step(self.random.choice(["relu", "relu in place"]), at))

    def _sum(self, at: int) -> None:
        """With a value of the same shape, if there is one."""
        same = [i for i, shape in enumerate(self.shapes) if shape == self.shapes[at] and i != at]
        if same:
            kind = self.random.choice(["add", "add", "add in place"])
            self._add(Step(kind, at, self.random.choice(same)))
            if self._maybe():
                self._relu(self._last())

    def _maybe(self) -> bool:
        return self.random.random() < 0.5

    def _module(self, at: int, module: nn.Module) -> None:
        self.parts.append(module)
        self._add(Step("module", at, len(self.parts) - 1))

    def _add(self, step: Step) -> None:
        """Take the step if the shapes allow it."""
        model = RandomNetwork(self.parts, [*self.plan, step]).eval()
        with torch.no_grad():
            found = copy.deepcopy(model)(torch.zeros(self.shapes[0])).shape
        if len(found) == 4 and min(found[2:]) < 1:
            return
        self.plan.append(step)
        self.shapes.append(found)


def sparse(model: nn.Module, density: float) -> so.Topology:
    """Random masks, some of them with neurons that have no input."""
    masks: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            masks[name] = torch.rand(weight.shape) < density
            masks[name].view(-1)[0] = True
    active = sum(int(mask.sum()) for mask in masks.values())
    return so.sparsify(model, 1 - active / sum(mask.numel() for mask in masks.values()), masks=masks)


def check_network(seed: int) -> bool:
    """Whether there was something to compare: some sequences of in-place operations cannot be differentiated."""
    builder = Builder(seed)
    model = builder.network()
    if not any(isinstance(part, nn.Conv2d | nn.Linear) for part in model.modules()):
        return False
    topology = sparse(model, builder.random.choice([0.1, 0.3, 0.7]))
    with torch.no_grad():
        x = builder.input(seed)
        dense, accelerated = (
            copy.deepcopy(model).double().eval(),
            on_kernels(copy.deepcopy(model), topology).eval(),
        )
        torch.testing.assert_close(accelerated(x.clone()).double(), dense(x.double()), rtol=1e-3, atol=1e-4)
    for attempt in range(3):
        try:
            reference = Reference.of(model, topology, builder.input(attempt), seed)
        except (RuntimeError, ValueError):
            return False  # torch cannot differentiate it, or has one value for a batch norm
        if reference.decided:
            found = results(
                on_kernels(copy.deepcopy(model), topology), topology, builder.input(attempt), seed
            )
            errors = reference.errors(found)
            assert all(error <= SLACK for error in errors.values()), (seed, errors, model)
            return True
    return False


@pytest.mark.slow
def test_random_networks() -> None:
    compared = [check_network(seed) for seed in range(NETWORKS)]
    assert sum(compared) > 0.3 * NETWORKS


class Run:
    """A small network in training, accelerated or dense."""

    def __init__(self, seed: int, *, accelerated: bool) -> None:
        choose = random.Random(seed)
        torch.manual_seed(seed)
        norm = choose.random() < 0.5
        layers: list[nn.Module] = [
            nn.Conv2d(3, 6, 3, bias=not norm),
            *([nn.BatchNorm2d(6)] if norm else []),
            nn.Tanh(),
        ]
        self.model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 24), nn.Tanh(), nn.Linear(24, 5))
        self.storage: Literal["dense", "packed"] = "packed" if choose.random() < 0.5 else "dense"
        self.topology = so.sparsify(
            self.model, choose.choice([0.6, 0.9]), distribution="uniform", storage=self.storage, seed=seed
        )
        kind = choose.choice([partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam, torch.optim.AdamW])
        method = choose.choice(
            [so.Static(), so.SET(total_steps=40, every=3), so.RigL(total_steps=40, every=3)]
        )
        base = kind(self.model.parameters(), lr=0.01, weight_decay=0.01)
        self.optimizer = so.SparseOpt(base, self.topology, method, max_grad_norm=choose.choice([None, 0.5]))
        if accelerated:
            so.accelerate(self.model, self.topology)
            assert so.kernels.accelerated_layers(self.model)

    def load(self, other: "Run") -> None:
        self.model.load_state_dict(copy.deepcopy(other.model.state_dict()))
        self.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))

    def do(self, what: str, x: Tensor) -> Tensor:
        """One thing that users do; what it gave."""
        if what == "evaluate":
            with torch.no_grad():
                return self.model.eval()(x)
        if what == "none":
            self.optimizer.zero_grad(set_to_none=True)
        elif what == "zero":
            self.optimizer.zero_grad(set_to_none=False)
        self.model.train(what != "frozen")
        if what == "frozen":
            self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        if what == "twice":
            self.model(x.flip(0)).square().mean().backward()
        self.optimizer.step()
        if what == "twice":
            self.optimizer.zero_grad()
        return loss.detach()


def check_sequence(seed: int) -> None:
    """Every step starts from equal states: rounding is not amplified from one to the next."""
    choose = random.Random(seed)
    dense, accelerated = Run(seed, accelerated=False), Run(seed, accelerated=True)
    for number in range(12):
        what = choose.choice(["none", "none", "zero", "evaluate", "twice", "frozen"])
        x = torch.randn(6, 3, 6, 6, generator=torch.Generator().manual_seed(100 * seed + number))
        accelerated.load(dense)
        for run in (dense, accelerated):
            run.optimizer.zero_grad()
        masks = {name: mask.clone() for name, mask in dense.topology.masks.items()}
        found = [run.do(what, x) for run in (dense, accelerated)]
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
        moved = any(not torch.equal(masks[name], mask) for name, mask in dense.topology.masks.items())
        if not moved:  # which of two nearly equal weights goes is a matter of rounding
            for mine, its in zip(accelerated.model.parameters(), dense.model.parameters(), strict=True):
                # Adam divides a gradient by its own size: one that is all rounding moves a weight by a whole step.
                assert float((mine - its).detach().abs().median()) < 1e-5, (seed, number, what)
        for name, mask in accelerated.topology.masks.items():
            assert int(mask.sum()) == dense.topology.active(name)
            if accelerated.storage == "dense":
                assert not accelerated.topology.parameters[name].detach()[~mask].any()


@pytest.mark.slow
def test_random_training() -> None:
    for seed in range(SEQUENCES):
        check_sequence(seed)
