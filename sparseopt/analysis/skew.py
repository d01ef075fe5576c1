"""How skewed is this network, and can the correction help it? The diagnostic for any model with a topology.

>>> import torch, sparseopt as so
>>> from torch import nn
>>> _ = torch.manual_seed(0)
>>> model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
>>> masks = so.topology.fan_in_masks(model, 0.8, "bimodal:10")
>>> topology = so.sparsify(model, 0.8, masks=masks)
>>> x, y = torch.randn(256, 64), torch.randint(10, (256,))
>>> report = so.analysis.skew_report(model, topology, lambda m: nn.functional.cross_entropy(m(x), y))
>>> report.layers["0.weight"].factor_spread > 0.3
True
>>> loss = nn.functional.cross_entropy(model(x), y)  # the loss of your training loop does as well, before its backward()
>>> round(so.analysis.skew_report(model, topology, loss).rotation, 3) == round(report.rotation, 3)
True

`print(report)` shows one row a layer; how to read it is told in docs/analyses.md. The model is left exactly as it was.
"""

import math
import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sparseopt.analysis.fan_in_law import PowerLaw, angle, neuron_scale, power_law
from sparseopt.methods import SET, Method, WeightMethod
from sparseopt.optim.correction import Mode, correction_factors
from sparseopt.topology import Topology, generator
from sparseopt.topology.dense_grads import DenseGradients
from sparseopt.topology.storage import Dense

Loss = Callable[[nn.Module], Tensor] | Tensor
Gradients = dict[str, Tensor]
Factors = dict[str, Tensor]


@dataclass(frozen=True)
class LayerSkew:
    """One layer: its fan-in, the factors that follow from it, and what its gradients show. Angles in degrees."""

    fan_in: Tensor
    density: Tensor  # 1 - s_i of each neuron
    factor: Tensor  # what the correction multiplies each neuron's gradient with
    scale: Tensor  # mean |gradient| of each neuron's active weights; NaN without inputs
    law: PowerLaw  # of the scale against 1 - s_i: slope -0.5 where BatchNorm follows, at the start
    corrected_law: PowerLaw
    norm: Tensor  # ||w_i|| of each neuron
    norm_law: PowerLaw  # of the scale against ||w_i||: slope -1 where BatchNorm follows, at any time
    corrected_norm_law: PowerLaw
    rotation: float  # angle between the raw and the corrected gradient
    jump: float  # angle by which a mask update turns the raw gradient
    corrected_jump: float

    @property
    def factor_spread(self) -> float:
        """Standard deviation of the factors: 0 where the correction does nothing."""
        return float(self.factor.std(correction=0))


@dataclass(frozen=True)
class SkewReport:
    """All layers, and the angles over the whole network's sparse weights."""

    layers: dict[str, LayerSkew]
    rotation: float
    jump: float
    corrected_jump: float

    def rows(self) -> list[dict[str, str | float]]:
        """One row a layer: the numbers behind the table."""
        return [
            {
                "layer": name,
                "neurons": layer.fan_in.numel(),
                "fan-in least": int(layer.fan_in.min()),
                "median": float(layer.fan_in.double().quantile(0.5)),
                "largest": int(layer.fan_in.max()),
                "factor spread": layer.factor_spread,
                "slope": layer.law.slope,
                "+-": layer.law.error,
                "slope corrected": layer.corrected_law.slope,
                "norm slope": layer.norm_law.slope,
                "norm slope corrected": layer.corrected_norm_law.slope,
                "rotation": layer.rotation,
                "jump": layer.jump,
                "jump corrected": layer.corrected_jump,
            }
            for name, layer in self.layers.items()
        ]

    def __str__(self) -> str:
        lines = _table(self.rows())
        angles = f"rotation {self.rotation:.1f}°"
        if not math.isnan(self.jump):
            angles += f", jump {self.jump:.1f}°, corrected {self.corrected_jump:.1f}°"
        return "\n".join([*lines, f"network: {angles}", *textwrap.wrap(self.verdict, 90)])

    @property
    def verdict(self) -> str:
        """In a sentence: is there a skew, and what would the correction do to it?"""
        layers = self.layers.values()
        return verdict(
            [layer.law.slope for layer in layers],
            [layer.law.error for layer in layers],
            [layer.corrected_law.slope for layer in layers],
        )


def verdict(
    slopes: Sequence[float | None], errors: Sequence[float | None], corrected: Sequence[float | None]
) -> str:
    """What the slopes of the layers, as they are and corrected, say: -0.5 is the theory's skew, 0 none.

    Layers that the correction leaves alone, where both are the same, do not count.
    """
    known = [
        [value for value in row if value is not None and math.isfinite(value)]
        for row in zip(slopes, errors, corrected, strict=True)
    ]
    whole = [row for row in known if len(row) == 3]
    if not whole:
        return "All neurons of a layer have the same fan-in: there is no skew, and the correction changes nothing."
    touched = [row for row in whole if row[0] != row[2]]
    if not touched:
        return "The correction changes no layer here: it is for those whose output goes into BatchNorm, which makes the skew."
    before, error, after = (statistics.median(values) for values in zip(*touched, strict=True))
    layers = (
        "the layer that it corrects"
        if len(touched) == 1
        else f"the median of the {len(touched)} layers that it corrects"
    )
    told = f"The gradient scale has slope {before:+.2f} in {layers} (theory of the skew: -0.5), corrected {after:+.2f}"
    if abs(abs(after) - abs(before)) < 4 * error:  # the difference has twice the error of a slope
        return f"{told}: with an error of {error:.2f}, this batch cannot tell whether the correction lessens a skew or adds one."
    if abs(after) < abs(before):
        return f"{told}: there is a skew, and the correction lessens it."
    if before < -2 * error:
        what = "there is less of a skew than the correction takes away, and it would leave a larger one, the other way round"
    elif before > 2 * error:
        what = "there is a skew the other way round, and the correction would add to it"
    else:
        what = "there is no skew by fan-in here, and the correction would add one"
    return f'{told}: {what}; train with correction="none".'


def skew_report(
    model: nn.Module,
    topology: Topology,
    loss: Loss,
    *,
    method: Method | None = None,
    drop_fraction: float = 0.3,
    correction: Mode | Literal["auto"] = "auto",
) -> SkewReport:
    """Measure the skew of a network at its present weights, on the batch behind `loss`.

    Args:
        model: the network, in training mode: BatchNorm in evaluation mode does not normalise by the batch, and there
            is no skew to see.
        topology: its topology, as `sparsify` returned it.
        loss: a loss that has not been differentiated yet, `criterion(model(x), y)`, or a function that computes the
            loss of the model it is given, on the same batch at every call. With a tensor, which cannot be computed
            again after a mask update, the jumps are not measured (NaN).
        method: whose mask update the jump is measured at; default `SET`. The update is tried, not kept.
        drop_fraction: share of the active weights that this update moves.
        correction: whose factors "corrected" means: SparseOpt's default under methods that do not go by gradients, or one
            of those of `skew_factors`.
    """
    if method is not None and not can_be_tried(method):
        raise ValueError(
            f"{type(method).__name__} has no update that drops some weights and grows as many, so no jump can be measured at it: "
            "leave method out, and it is SET's"
        )
    if not model.training:
        raise ValueError(
            "the model is in evaluation mode, where BatchNorm causes no skew: call model.train() first"
        )
    if topology.kind() != "dense":
        raise ValueError(
            "skew_report moves masks for a try, which packed storage cannot: load the model's state_dict() into a model "
            "that was sparsified with storage='dense' and the same masks"
        )
    if isinstance(loss, Tensor):
        before, factors = _gradients(loss, topology), _factors(topology, correction)
        nowhere = {name: torch.full_like(grad, math.nan) for name, grad in before.items()}
        return _report(topology, topology, (before, nowhere), (factors, factors))
    with _left_as_it_was(model):
        before = _computed(model, topology, loss)
        factors = _factors(topology, correction)
        moved = _updated(topology, before, method or SET(total_steps=1), drop_fraction)
        moved.apply()
        after = _computed(model, topology, loss)
        moved_factors = _factors(moved, correction)
    return _report(topology, moved, (before, after), (factors, moved_factors))


def can_be_tried(method: Method) -> bool:
    """Has the method an update that drops weights of a layer and grows as many?"""
    return type(method).grow_score is not Method.grow_score and not isinstance(method, WeightMethod)


def _factors(topology: Topology, correction: Mode | Literal["auto"]) -> Factors:
    """One factor a neuron of every layer; 1 where there is no correction."""
    found = correction_factors(topology, correction)
    return {
        name: found.get(
            name, torch.ones(layer.neurons, dtype=torch.float64, device=topology.parameters[name].device)
        )
        for name, layer in topology.layers.items()
    }


def _report(
    topology: Topology, moved: Topology, grads: tuple[Gradients, Gradients], factors: tuple[Factors, Factors]
) -> SkewReport:
    before, after = grads
    raw = _masked(before, topology.masks)
    corrected = _corrected(raw, topology, factors[0])
    stayed = {name: topology.masks[name] & moved.masks[name] for name in before}
    jump = _masked(before, stayed), _masked(after, stayed)
    corrected_jump = _corrected(jump[0], topology, factors[0]), _corrected(jump[1], moved, factors[1])
    layers = {
        name: _layer_skew(
            topology,
            name,
            factors[0][name],
            (raw[name], corrected[name]),
            [(a[name], b[name]) for a, b in (jump, corrected_jump)],
        )
        for name in before
    }
    return SkewReport(
        layers,
        rotation=angle(_flat(raw), _flat(corrected)),
        jump=angle(*map(_flat, jump)),
        corrected_jump=angle(*map(_flat, corrected_jump)),
    )


def _layer_skew(
    topology: Topology,
    name: str,
    factor: Tensor,
    gradient: tuple[Tensor, Tensor],
    jumps: list[tuple[Tensor, Tensor]],
) -> LayerSkew:
    layer = topology.layers[name]
    fan_in = topology.fan_in(name)
    density = fan_in.double() / layer.inputs
    mask = layer.by_neuron(topology.masks[name])
    scale, corrected_scale = (neuron_scale(layer.by_neuron(g), mask) for g in gradient)
    norm = layer.by_neuron(topology.parameters[name].detach().double() * topology.masks[name]).norm(dim=1)
    return LayerSkew(
        fan_in=fan_in,
        density=density,
        factor=factor,
        scale=scale,
        law=power_law(density, scale),
        corrected_law=power_law(density, corrected_scale),
        norm=norm,
        norm_law=power_law(norm, scale),
        corrected_norm_law=power_law(norm, corrected_scale),
        rotation=angle(*gradient),
        jump=angle(*jumps[0]),
        corrected_jump=angle(*jumps[1]),
    )


@contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Undo, at the end, whatever the block did to parameters and buffers."""
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        yield
    finally:
        model.load_state_dict(kept)


def _computed(model: nn.Module, topology: Topology, loss: Callable[[nn.Module], Tensor]) -> Gradients:
    """The gradients of the loss as it is now, inactive weights included; every call sees the same dropout."""
    with topology.dense_grads.all_wanted(), torch.random.fork_rng():
        return _gradients(loss(model), topology)


def _gradients(loss: Tensor, topology: Topology) -> Gradients:
    """The dense gradient of every layer that the loss reaches, in float64. The graph is kept: it may be the training loop's."""
    if not loss.requires_grad:
        raise ValueError(
            "loss has no graph to differentiate: give criterion(model(x), y) as it is, not detached and outside of no_grad"
        )
    learning = {name: each for name, each in topology.parameters.items() if each.requires_grad}
    if not learning:
        raise ValueError("all sparse layers are frozen: there is no gradient to look at")
    try:
        grads = torch.autograd.grad(loss, list(learning.values()), allow_unused=True, retain_graph=True)
    except RuntimeError as error:
        if "a second time" not in str(error):
            raise
        raise ValueError(
            "loss has been through backward() already: call this before it, or give a function, "
            "lambda model: criterion(model(x), y)"
        ) from error
    return {name: grad.double() for name, grad in zip(learning, grads, strict=True) if grad is not None}


def _updated(topology: Topology, grads: Gradients, method: Method, fraction: float) -> Topology:
    """What the topology would be after one update of the method."""
    masks = {
        name: method.next_mask(
            mask,
            topology.parameters[name].detach(),
            grads.get(name),
            fraction,
            generator(topology.seed, "skew report", name),
        )
        if name in grads
        else mask
        for name, mask in topology.masks.items()
    }
    wanted = DenseGradients()
    moved = {
        name: Dense(topology.layers[name], topology.parameters[name], mask, wanted)
        for name, mask in masks.items()
    }
    return Topology(moved, wanted, seed=topology.seed, normed=topology.normed)


def _masked(grads: Gradients, masks: Mapping[str, Tensor]) -> Gradients:
    return {name: grad * masks[name] for name, grad in grads.items()}


def _corrected(grads: Gradients, topology: Topology, factors: Factors) -> Gradients:
    return {name: grad * topology.layers[name].broadcast(factors[name]) for name, grad in grads.items()}


def _flat(grads: Gradients) -> Tensor:
    return torch.cat([grad.flatten().cpu() for grad in grads.values()])


def _table(rows: Sequence[Mapping[str, str | float]]) -> list[str]:
    """Lines that fit a terminal: headings a word a line, and no column of which nothing is known."""
    shown = [
        key for key in rows[0] if any(row[key] == row[key] for row in rows)
    ]  # NaN is not equal to itself
    words = [key.split() for key in shown]
    height = max(map(len, words))
    columns = [
        [*[""] * (height - len(heading)), *heading, *(_cell(row[key]) for row in rows)]
        for key, heading in zip(shown, words, strict=True)
    ]
    widths = [max(map(len, column)) for column in columns]
    first, *others = widths
    return [
        " ".join([line[0].ljust(first), *map(str.rjust, line[1:], others)])
        for line in zip(*columns, strict=True)
    ]


def _cell(value: str | float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
