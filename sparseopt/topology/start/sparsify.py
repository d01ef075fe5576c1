"""`sparsify`: give a model its masks, in place, and hand back the topology."""

import logging
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from sparseopt.topology.dense_grads import DenseGradients
from sparseopt.topology.densities import Distribution, check_sparsity
from sparseopt.topology.layers import Layer
from sparseopt.topology.nm import has_groups, parse_nm
from sparseopt.topology.norms import keep_slices
from sparseopt.topology.randomness import generator
from sparseopt.topology.sharding import local, part_like, whole
from sparseopt.topology.start.find import DEPTHWISE, FROZEN, VECTOR, Patterns, sort_layers, uncompiled
from sparseopt.topology.start.first_masks import NAMES, masks_by_weights
from sparseopt.topology.start.masks import random_masks
from sparseopt.topology.start.normed import batch_normed
from sparseopt.topology.start.packing import check_packable, pack_layer, refuse_packed
from sparseopt.topology.storage import Dense
from sparseopt.topology.summary import listed
from sparseopt.topology.topology import Topology

Masks = str | Mapping[str, Tensor]  # one of NAMES

log = logging.getLogger(__name__)

_SPARSE = WeakIdKeyDictionary()  # parameter that sparsify has masked -> weak reference to its topology


def sparsify(
    model: nn.Module,
    sparsity: float | None = None,
    *,
    distribution: Distribution = "erk",
    masks: Masks | None = None,
    include: Patterns = None,
    exclude: Patterns = None,
    init: Literal["sparse"] | None = None,
    storage: Literal["dense", "packed"] = "dense",
    seed: int = 0,
) -> Topology:
    """Make a model sparse in place: choose masks, set the masked weights to exactly zero, return the `Topology`.

    Every Linear, Bilinear, convolution, recurrent and attention weight is sparsifiable, Hugging Face's `Conv1D` and what
    `register_layer` has made known, unless `include` or `exclude` (glob patterns over parameter names) say otherwise. Frozen
    weights and depthwise convolutions are only if `include`, the masks or the distribution name them; biases, norm layers and
    embeddings never are. `topology.summary()` ends with what stayed dense, and why.

    Args:
        model: the network; it is changed in place.
        include: glob patterns over parameter names: only these may be sparse.
        exclude: glob patterns over parameter names: these stay dense.
        sparsity: share of zeros over all sparsifiable weights; they come out exactly. May be None where the masks or
            the distribution already say it.
        distribution: "erk", "er", "uniform", or {parameter name: sparsity} for the layers to be fixed.
        masks: None draws random masks; {name: bool tensor} takes these (layers not named stay dense); "nonzero" adopts
            the zeros the model already has; "magnitude" keeps the largest weights of each layer, "magnitude-global" those of
            the network; "2:4" (or any n:m) the largest n of every m inputs of a neuron.
        init: "sparse" draws the active weights anew with variance 2 / fan_in_i for neuron i.
        storage: "dense" keeps plain parameters with exact zeros; "packed" keeps the active values alone, so that gradients,
            optimizer state and what ranks send each other follow the active weights (docs/storage.md).
        seed: decides the masks, the sparse initialisation, and every later draw of the method.

    >>> model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))
    >>> sparsify(model, 0.8)
    Topology(2 layers, 180 of 900 weights active, sparsity 0.8000)
    >>> int((model[0].weight != 0).sum() + (model[2].weight != 0).sum())
    180
    """
    if seed != int(seed):
        raise ValueError(f"seed must be a whole number, got {seed}")
    if init not in (None, "sparse"):
        raise ValueError(f"init must be None or 'sparse', got {init!r}")
    if storage not in ("dense", "packed"):
        raise ValueError(f"storage must be 'dense' or 'packed', got {storage!r}")
    if sparsity is not None:
        check_sparsity(sparsity)
    model = uncompiled(model)
    refuse_packed(model)
    named = {name for names in (masks, distribution) if isinstance(names, Mapping) for name in names}
    found, left_dense = sort_layers(model, include, exclude, named)
    layers = {name: layer for name, (layer, _) in found.items()}
    parameters = {name: parameter for name, (_, parameter) in found.items()}
    _refuse_twice(parameters, masks)
    if masks is None:
        if init != "sparse":
            _tell_of_zeros(parameters)
        chosen = random_masks(layers, sparsity, distribution, seed)
        chosen = _with_norms(chosen, layers, parameters)
    elif isinstance(masks, str):
        weights = {name: whole(parameter.detach()) for name, parameter in parameters.items()}
        chosen = masks_by_weights(masks, layers, weights, sparsity, distribution)
        if masks.startswith("magnitude"):
            chosen = _with_norms(chosen, layers, parameters)
    else:
        chosen = _given_masks(masks, layers)
    if masks is not None:
        _check_given(chosen, sparsity)
    if storage == "packed":
        check_packable(model, parameters)
    _check_norms(layers, parameters, chosen)
    _check_kept_zeros(model, parameters, chosen)
    normed = batch_normed(model, layers)
    if init == "sparse":
        _draw_weights(layers, parameters, chosen, seed)
    grads = DenseGradients()
    keep = partial(pack_layer, model) if storage == "packed" else Dense
    kept = {name: keep(layer, parameters[name], chosen[name], grads) for name, layer in layers.items()}
    topology = Topology(kept, grads, seed=seed, init=init, normed=normed, left_dense=left_dense)
    topology.apply()
    for parameter in parameters.values():
        _SPARSE[parameter] = weakref.ref(topology)
    _tell(topology)
    _tell_of_groups(masks, layers)
    _tell_of_frozen(topology, drawn=masks is None)
    _tell_of_dead(topology, drawn=masks is None)
    return topology


def _tell(topology: Topology) -> None:
    """Say what a user would not expect: what stays dense by itself, and that most does."""
    for reason, what in ((FROZEN, "frozen"), (DEPTHWISE, "depthwise")):
        names = [each.name for each in topology.left_dense if each.why == reason]
        if names:
            log.warning(
                "%d %s %s dense (%s); include=... makes them sparse, by name",
                *(len(names), what, "weight stays" if len(names) == 1 else "weights stay", listed(names)),
            )
    dense = [each for each in topology.left_dense if each.why != VECTOR]
    weights = sum(each.size for each in dense)
    if weights > topology.size():
        log.warning(
            "most of the model stays dense: %d of its %d weights, such as %s (%s); topology.summary() lists them",
            *(weights, weights + topology.size()),
            *max(dense, key=lambda each: each.size)[::2],
        )


def _tell_of_groups(masks: object, layers: Mapping[str, Layer]) -> None:
    """Layers that n:m leaves as they are."""
    nm = parse_nm(masks) if isinstance(masks, str) else None
    if nm is None:
        return
    dense = [name for name, layer in layers.items() if not has_groups(layer, nm[1])]
    if dense:
        log.warning(
            "%d of %d layers stay dense under %d:%d, because their inputs do not divide by %d: %s",
            *(len(dense), len(layers), *nm, nm[1], listed(dense)),
        )


def _tell_of_frozen(topology: Topology, *, drawn: bool) -> None:
    """Random masks over what was trained and is not trained any more: `include` may have meant others."""
    frozen = [
        name
        for name, layer in topology.layers.items()
        if not topology.parameters[name].requires_grad and topology.active(name) < layer.size
    ]
    if frozen and drawn:
        log.warning(
            "%d frozen %s cut at random, because include names %s: %s; masks='magnitude' keeps the largest",
            *(len(frozen), "weight is" if len(frozen) == 1 else "weights are"),
            *("it" if len(frozen) == 1 else "them", listed(frozen)),
        )


def _tell_of_dead(topology: Topology, *, drawn: bool) -> None:
    """Masks that were given are the user's own."""
    dead = topology.dead_neurons()
    advice = (
        ": lower the sparsity, take another distribution, or give sparsify, for a fresh model, "
        "masks=so.topology.fan_in_masks(model, sparsity, 'constant')"
    )
    if dead:
        log.warning(
            "%d of %d neurons start without a single input%s",
            *(dead, topology.neurons(), advice if drawn else ""),
        )


def _tell_of_zeros(parameters: Mapping[str, nn.Parameter]) -> None:
    """Random masks over a network that is sparse already cut what it has learnt: say so."""
    sparse = [name for name, parameter in parameters.items() if 0.3 < _zeros(parameter) < 1]
    if sparse:
        log.warning(
            "%d of %d weights are sparse already (such as %s), and random masks cut them at other places: masks='nonzero' goes "
            "on with their own; to resume a run, call sparsify first, then load model and optimizer",
            *(len(sparse), len(parameters), sparse[0]),
        )


def _zeros(parameter: nn.Parameter) -> float:
    """Share of exact zeros; 0 where there is nothing to look at."""
    part = local(parameter.detach())
    return 0.0 if part.is_meta or not part.numel() else 1 - int(part.count_nonzero()) / part.numel()


def _with_norms(
    masks: Mapping[str, Tensor], layers: Mapping[str, Layer], parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """Masks of as many active weights, in which weight_norm has something to take every norm of."""
    kept = dict(masks)
    for name, mask in masks.items():
        if layers[name].norm_dim is not None:
            weight = whole(parameters[name].detach()).to(mask.device)
            kept[name] = keep_slices(mask, torch.ones_like(mask), weight, layers[name])
    return kept


def _check_norms(
    layers: Mapping[str, Layer], parameters: Mapping[str, nn.Parameter], masks: Mapping[str, Tensor]
) -> None:
    """Refuse masks that leave weight_norm nothing to take a norm of."""
    for name, layer in layers.items():
        if layer.norm_dim is None:
            continue
        weight = whole(parameters[name].detach())
        empty = int(
            (layer.slices(weight.masked_fill(~masks[name].to(weight.device), 0)).abs().amax(1) == 0).sum()
        )
        if empty:
            raise ValueError(
                f"{name!r} is under weight_norm, and {empty} of the slices that it divides by their norms would have no active "
                "weight: a lower sparsity or masks=so.topology.fan_in_masks(model, sparsity, 'constant') leaves them some, "
                f"exclude={name!r} leaves the weight dense"
            )


@torch.no_grad()
def _check_kept_zeros(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], masks: Mapping[str, Tensor]
) -> None:
    """Refuse weights that a parametrization computes so that masked entries do not come out as zero."""
    for name, parameter in parameters.items():
        owner, found, rest = name.rpartition("parametrizations.")
        if not found:
            continue
        module, leaf = model.get_submodule(owner.rstrip(".")), rest.split(".")[0]
        computing = model.get_submodule(f"{owner}parametrizations.{leaf}")
        before, training = parameter.detach().clone(), computing.training
        computing.eval()  # spectral_norm changes its buffers in training mode
        mask = masks[name].to(parameter.device)
        parameter.detach().masked_fill_(~mask, 0)
        zeros_stay = not bool(getattr(module, leaf)[~mask].any())
        parameter.detach().copy_(before)
        computing.train(training)
        if not zeros_stay:
            raise ValueError(
                f"the parametrization of {owner}{leaf} does not keep zeros, so the weight would not be sparse: remove it, "
                f"or leave the weight out with exclude={name!r}"
            )


def _given_masks(masks: Mapping[str, Tensor], layers: Mapping[str, Layer]) -> dict[str, Tensor]:
    if not isinstance(masks, Mapping):
        raise TypeError(f"masks must be {NAMES}, got {type(masks).__name__}")
    unknown = sorted(set(masks) - set(layers))
    if unknown:
        raise ValueError(
            f"masks names {unknown}, which are not among the sparsifiable layers {sorted(layers)}"
        )
    for name, mask in masks.items():
        if not isinstance(mask, Tensor):
            raise TypeError(f"mask of {name!r} must be a bool tensor, got {type(mask).__name__}")
        if mask.dtype != torch.bool:
            raise ValueError(
                f"mask of {name!r} must be a bool tensor, got {mask.dtype}; convert it with .bool()"
            )
        if tuple(mask.shape) != layers[name].shape:
            raise ValueError(
                f"mask of {name!r} has shape {tuple(mask.shape)}, the weight has {layers[name].shape}"
            )
    return {
        name: masks[name].clone()
        if name in masks
        else torch.ones(layer.shape, dtype=torch.bool, device="cpu")
        for name, layer in layers.items()
    }


def _check_given(masks: Mapping[str, Tensor], sparsity: float | None) -> None:
    active = 0
    for name, mask in masks.items():
        count = int(mask.sum())
        if count == 0:
            raise ValueError(
                f"mask of {name!r} is empty: the layer would pass nothing on; exclude it or fill it"
            )
        active += count
    total = sum(mask.numel() for mask in masks.values())
    if sparsity is not None and abs((1 - sparsity) * total - active) > len(masks):
        log.warning(
            "the masks decide: they have sparsity %.6g (%d of %d weights active), not the %g asked for",
            *(1 - active / total, active, total, sparsity),
        )


def _refuse_twice(parameters: Mapping[str, nn.Parameter], masks: Masks | None) -> None:
    for name, parameter in parameters.items():
        if parameter not in _SPARSE:
            continue
        earlier = _SPARSE[parameter]()
        in_use = earlier is not None and earlier.claimed()
        if in_use or not (isinstance(masks, str) and masks == "nonzero"):
            raise ValueError(
                f"{name!r} is sparse already: use the topology that the first sparsify returned, or start from a "
                "fresh model; masks='nonzero' adopts the zeros again once no optimizer uses that topology"
            )


@torch.no_grad()
def _draw_weights(
    layers: Mapping[str, Layer],
    parameters: Mapping[str, nn.Parameter],
    masks: Mapping[str, Tensor],
    seed: int,
) -> None:
    for name, layer in layers.items():
        fan_in = layer.by_neuron(masks[name]).sum(1)
        std = (2 / fan_in.clamp(min=1).double()).sqrt().cpu()
        draw = generator(seed, "init", name)
        weight = torch.randn(layer.shape, generator=draw, device=draw.device, dtype=torch.float64)
        weight *= layer.broadcast(std)
        local(parameters[name]).copy_(part_like(weight, parameters[name]))
