"""Which parameters of a model can be sparse, which stay dense, and why."""

import difflib
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase

from torch import Tensor, nn

from sparseopt.topology.layers import Layer, LeftDense
from sparseopt.topology.start.kinds import WEIGHTED, pruned_leaves, weights_of

Patterns = str | list[str] | tuple[str, ...] | None

Found = dict[str, tuple[Layer, nn.Parameter]]

FROZEN = "frozen (requires_grad=False): name it in include to make it sparse"
DEPTHWISE = "depthwise convolution: name it in include to make it sparse"
EMBEDDING = "embedding, or tied to one"
EXCLUDED = "excluded"
NOT_INCLUDED = "not included"
VECTOR = "one axis: biases, norms"
PARAMETRIZED = "with others, a sparse weight is computed from it"
UNKNOWN = "no known layer: so.register_layer makes its type known"


def uncompiled(model: nn.Module) -> nn.Module:
    """What torch.compile was given: the same weights, under the names that they had before."""
    return getattr(model, "_orig_mod", model)


def find_layers(
    model: nn.Module, include: Patterns = None, exclude: Patterns = None, named: Collection[str] = ()
) -> Found:
    """All sparsifiable weights of the model, by parameter name; a tied weight appears once, under its first name.

    Biases, norm layers and embeddings are never among them, nor is a weight tied to an embedding. `include` and `exclude`
    are glob patterns over parameter names. Frozen weights and depthwise convolutions are among them only by name: matched by
    `include`, or one of `named`.
    """
    return sort_layers(model, include, exclude, named)[0]


def sort_layers(
    model: nn.Module, include: Patterns = None, exclude: Patterns = None, named: Collection[str] = ()
) -> tuple[Found, list[LeftDense]]:
    """What `find_layers` finds, and what stays dense and why."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {model!r:.80}")
    model = uncompiled(model)
    _refuse_pruned(model, exclude)
    found: Found = {}
    why: dict[str, str] = {}
    tied = {id(weight) for weight in _embeddings(model)}
    for name, layer, parameter, depthwise in _weights(model):
        if id(parameter) in tied:
            continue
        tied.add(id(parameter))
        found[name] = (layer, parameter)
        if include is None and name not in named and (depthwise or not parameter.requires_grad):
            why[name] = DEPTHWISE if parameter.requires_grad else FROZEN
    if not found:
        kinds = ", ".join(kind.__name__ for kind in (*WEIGHTED, nn.MultiheadAttention, nn.RNNBase))
        raise ValueError(
            f"the model has no layer that can be sparse; supported are {kinds}, and what register_layer makes known"
        )
    included = _matching(include, found, "include") if include is not None else set(found)
    excluded = _matching(exclude, found, "exclude") if exclude is not None else set[str]()
    why |= {name: NOT_INCLUDED for name in found if name not in included}
    why |= dict.fromkeys(excluded, EXCLUDED)
    chosen = {name: entry for name, entry in found.items() if name not in why}
    if not chosen:
        reasons = "; ".join(sorted({f"{name}: {reason}" for name, reason in why.items()})[:3])
        raise ValueError(
            f"include={include!r} and exclude={exclude!r} together leave no layer to be sparse: {reasons}"
        )
    for name, (_, parameter) in chosen.items():
        _check_usable(name, parameter)
    return chosen, list(_left_dense(model, chosen, why))


def _left_dense(model: nn.Module, chosen: Found, why: Mapping[str, str]) -> Iterator[LeftDense]:
    sparse = {id(parameter) for _, parameter in chosen.values()}
    embeddings = {id(weight) for weight in _embeddings(model)}
    beside = {
        id(parameter)
        for name in chosen
        for parameter in model.get_submodule(name.rpartition(".")[0]).parameters(recurse=False)
        if "parametrizations." in name or name.endswith("_v")
    }
    for name, parameter in model.named_parameters():
        if id(parameter) in sparse or isinstance(parameter, nn.UninitializedParameter):
            continue
        reason = why.get(name) or (EMBEDDING if id(parameter) in embeddings else None)
        reason = reason or (VECTOR if parameter.dim() < 2 else None)
        reason = reason or (PARAMETRIZED if id(parameter) in beside else UNKNOWN)
        yield LeftDense(name, parameter.numel(), reason)


def _weights(model: nn.Module) -> Iterator[tuple[str, Layer, nn.Parameter, bool]]:
    for prefix, module in model.named_modules():
        for leaf, parameter, transposed, groups, depthwise, norm_dim, other in weights_of(module):
            name = f"{prefix}.{leaf}" if prefix else leaf
            beside = f"{prefix}.{other}" if prefix and other else other
            shape = () if isinstance(parameter, nn.UninitializedParameter) else tuple(parameter.shape)
            yield name, Layer(name, shape, transposed, groups, norm_dim, beside), parameter, depthwise


def _refuse_pruned(model: nn.Module, exclude: Patterns) -> None:
    patterns = [exclude] if isinstance(exclude, str) else exclude or ()
    for prefix, module in model.named_modules():
        for leaf in pruned_leaves(module):
            name = f"{prefix}.{leaf}" if prefix else leaf
            if not any(fnmatchcase(name, pattern) for pattern in patterns):
                raise ValueError(
                    f"{name!r} is held by torch.nn.utils.prune: make its zeros permanent with "
                    f"prune.remove(module, {leaf!r}), then sparsify(model, masks='nonzero') adopts them"
                )


def _embeddings(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            yield module.weight


def _check_usable(name: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, nn.UninitializedParameter):
        raise ValueError(f"{name!r} has no shape yet: run one batch through the model before sparsifying it")
    if parameter.device.type == "meta":
        raise ValueError(
            f"{name!r} is on the meta device: materialise and initialise the model before sparsifying it"
        )
    if not (parameter.dtype.is_floating_point or parameter.dtype.is_complex):
        raise ValueError(f"{name!r} has dtype {parameter.dtype}: only floating-point weights can be sparse")
    if parameter.numel() == 0:
        raise ValueError(
            f"{name!r} has no weights, shape {tuple(parameter.shape)}: leave it out with exclude={name!r}"
        )


def _matching(patterns: Patterns, found: dict[str, tuple[Layer, nn.Parameter]], option: str) -> set[str]:
    matched: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns or ():
        hits = {name for name in found if fnmatchcase(name, pattern)}
        if not hits:
            near = difflib.get_close_matches(pattern, found, n=3, cutoff=0.3) or list(found)[:3]
            raise ValueError(
                f"{option} pattern {pattern!r} matches no sparsifiable parameter; near names: {', '.join(near)}"
            )
        matched |= hits
    return matched
