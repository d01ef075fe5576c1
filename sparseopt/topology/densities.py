"""How many weights each layer keeps: uniform, Erdős-Rényi (ER), Erdős-Rényi-Kernel (ERK), or the user's own numbers.

ER gives a layer a density proportional to (n_in + n_out) / (n_in n_out), so that small layers stay denser; ERK counts the
kernel's dimensions as well. The references are Mocanu et al. 2018 (SET) and Evci et al. 2020 (RigL), whose derivation is
written beside the loop below.
"""

import math
from collections.abc import Mapping, Sequence

Shape = Sequence[int]
Distribution = str | Mapping[str, float]
DISTRIBUTIONS = ("erk", "er", "uniform")


def densities(
    shapes: Mapping[str, Shape], sparsity: float | None, distribution: Distribution = "erk"
) -> dict[str, float]:
    """Density (share of active weights) of each layer, such that the whole network has the given sparsity.

    A mapping {name: sparsity} fixes the layers it names; the others share what is left evenly. If it names every layer,
    `sparsity` must say the same as the mapping, or be None.

    Args:
        shapes: {parameter name: shape} of the layers.
        sparsity: share of zeros over all of them.
        distribution: "erk", "er", "uniform", or {name: sparsity} for the layers to be fixed.

    >>> densities({"a": (300, 784), "b": (10, 300)}, 0.75, "uniform")
    {'a': 0.25, 'b': 0.25}
    >>> densities({"a": (300, 784), "b": (10, 300)}, 0.9, {"b": 0.0})["b"]
    1.0
    """
    if isinstance(distribution, Mapping):
        return _with_fixed_layers(shapes, sparsity, distribution)
    if sparsity is None:
        raise ValueError(
            "sparsity must be given, such as 0.9 for 90% zeros; None goes only with a mapping {name: sparsity} as "
            "distribution, or with masks"
        )
    check_sparsity(sparsity)
    if distribution == "uniform":
        return dict.fromkeys(shapes, 1 - sparsity)
    if distribution == "er":
        return _erdos_renyi(shapes, sparsity, {name: shape[:2] for name, shape in shapes.items()})
    if distribution == "erk":
        return _erdos_renyi(shapes, sparsity, shapes)
    raise ValueError(
        f"distribution must be one of {', '.join(DISTRIBUTIONS)} or a mapping {{name: sparsity}}, "
        f"got {distribution!r}"
    )


def active_counts(
    shapes: Mapping[str, Shape], sparsity: float | None, distribution: Distribution = "erk"
) -> dict[str, int]:
    """Number of active weights of each layer: whole numbers that add up to round((1 - sparsity) N) exactly.

    Layers that a mapping names have what it says, rounded, and the others share what is left.

    >>> active_counts({"a": (16, 40), "b": (27, 37), "c": (16, 31)}, 0.7, {"a": 0.25})
    {'a': 480, 'b': 108, 'c': 53}
    """
    density = densities(shapes, sparsity, distribution)
    sizes = _sizes(shapes)
    targets = {name: density[name] * size for name, size in sizes.items()}
    named = distribution if isinstance(distribution, Mapping) else {}
    fixed = {name: round(targets[name]) for name in shapes if name in named}
    total = sum(fixed.values()) if sparsity is None else round((1 - sparsity) * sum(sizes.values()))
    free = {name: size for name, size in sizes.items() if name not in fixed}
    left = total - sum(fixed.values())
    if 0 <= left <= sum(free.values()):
        shared = share_out({name: targets[name] for name in free}, free, left)
        counts = {name: fixed.get(name, shared.get(name, 0)) for name in shapes}
    else:  # what is fixed leaves no room for rounding
        counts = share_out(targets, sizes, total)
    for name, count in counts.items():
        if count == 0:
            raise ValueError(
                f"sparsity {sparsity} leaves layer {name!r} ({sizes[name]} weights) without a single active weight; "
                f"lower the sparsity, give the layer more by distribution={{name: sparsity}}, or exclude={name!r}"
            )
    return counts


def share_out(targets: Mapping[str, float], sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """Round the targets to whole numbers that add up to `total`, by largest remainder; none exceeds its size.

    Layers whose target is their size stay dense; the targets of the others are first scaled to the total they share.

    >>> share_out({"a": 1.5, "b": 2.25, "c": 1.25}, {"a": 9, "b": 9, "c": 9}, 5)
    {'a': 2, 'b': 2, 'c': 1}
    """
    dense = {name for name, target in targets.items() if target >= sizes[name]}
    if len(dense) == len(sizes) and total < sum(sizes.values()):
        dense = set()  # the targets were rounded up: all layers share in what is missing
    left = total - sum(sizes[name] for name in dense)
    wanted = sum(target for name, target in targets.items() if name not in dense)
    if left < 0 or (left > 0 and len(dense) == len(sizes)):
        raise ValueError(f"{total} active weights were asked for, but the dense layers have {total - left}")
    quotas = {
        name: sizes[name] if name in dense else min(target * left / max(wanted, 1e-300), sizes[name])
        for name, target in targets.items()
    }
    counts = {name: math.floor(quota) for name, quota in quotas.items()}
    by_remainder = sorted(counts, key=lambda name: counts[name] - quotas[name])
    room = {name: sizes[name] - counts[name] for name in by_remainder}
    more = _one_by_one(room, total - sum(counts.values()))
    return {name: count + more[name] for name, count in counts.items()}


def _one_by_one(room: Mapping[str, int], total: int) -> dict[str, int]:
    """What each gets of `total` if one is given to each in turn, in their order, as long as it has room.

    It is one round or less, unless a quota was cut to its layer's size; the rounds in which nobody drops out are taken at once.
    """
    rounds, left, taking = 0, total, len(room)
    for space in sorted(room.values()):
        step = min(space - rounds, left // taking)
        rounds, left = rounds + step, left - step * taking
        if rounds < space:
            break
        taking -= 1
    given = {name: min(space, rounds) for name, space in room.items()}
    for name in [name for name, space in room.items() if space > rounds][:left]:
        given[name] += 1
    return given


def check_sparsity(sparsity: float, what: str = "sparsity") -> None:
    if isinstance(sparsity, str) or not 0 <= sparsity < 1:  # also refuses NaN
        raise ValueError(
            f"{what} must be in [0, 1), got {sparsity!r}; it is the share of zeros, 0.95 for 95%"
        )


def _sizes(shapes: Mapping[str, Shape]) -> dict[str, int]:
    return {name: math.prod(shape) for name, shape in shapes.items()}


def _erdos_renyi(
    shapes: Mapping[str, Shape], sparsity: float, factors: Mapping[str, Shape]
) -> dict[str, float]:
    """Densities eps * p with p = sum(dimensions) / product(dimensions), and eps such that the counts fit the budget.

    For the layers that are not dense, eps must satisfy

        eps * sum_sparse(p N) + sum_dense(N) = sum_all(N - floor(s N))

    hence eps = [sum_sparse(N - floor(s N)) - sum_dense(floor(s N))] / sum_sparse(p N). If some density eps * p exceeds 1,
    the layers with the largest p become dense and eps is computed again.
    """
    sizes = _sizes(shapes)
    raw = {name: sum(factor) / math.prod(factor) for name, factor in factors.items()}
    zeros = {name: math.floor(sparsity * size) for name, size in sizes.items()}
    dense: set[str] = set()
    while len(dense) < len(sizes):
        sparse = [name for name in sizes if name not in dense]
        budget = sum(sizes[name] - zeros[name] for name in sparse) - sum(zeros[name] for name in dense)
        epsilon = budget / sum(raw[name] * sizes[name] for name in sparse)
        if epsilon <= 0:
            kept = sum(sizes[name] for name in dense)
            raise ValueError(
                f"sparsity {sparsity} allows {kept + budget} active weights, but the layers that must be dense "
                f"({', '.join(sorted(dense))}) have {kept}; lower the sparsity or exclude some of them"
            )
        largest = max(raw[name] for name in sparse)
        if epsilon * largest <= 1:
            return {name: 1.0 if name in dense else epsilon * raw[name] for name in sizes}
        dense |= {name for name in sparse if raw[name] == largest}
    return dict.fromkeys(sizes, 1.0)


def _with_fixed_layers(
    shapes: Mapping[str, Shape], sparsity: float | None, fixed: Mapping[str, float]
) -> dict[str, float]:
    unknown = sorted(set(fixed) - set(shapes))
    if unknown:
        raise ValueError(f"distribution names {unknown}, which are not among the layers {sorted(shapes)}")
    for name, value in fixed.items():
        check_sparsity(value, f"distribution[{name!r}]")
    sizes = _sizes(shapes)
    density = {name: 1.0 - value for name, value in fixed.items()}
    taken = sum(density[name] * sizes[name] for name in fixed)
    free = [name for name in shapes if name not in fixed]
    if sparsity is None:
        if free:
            raise ValueError(
                f"sparsity is None, but the distribution leaves {free} open: give them or a sparsity"
            )
        return {name: density[name] for name in shapes}
    check_sparsity(sparsity)
    total = sum(sizes.values())
    budget = (1 - sparsity) * total
    if not free and abs(taken - budget) > len(fixed):
        raise ValueError(
            f"the distribution names every layer and asks for sparsity {1 - taken / total:.6g} in all, "
            f"but sparsity={sparsity}; pass sparsity=None to take the distribution as it stands"
        )
    room = sum(sizes[name] for name in free)
    if not -len(fixed) <= budget - taken <= room + len(fixed):
        raise ValueError(
            f"sparsity {sparsity} means {round(budget)} of {total} weights active, but the layers fixed by the "
            f"distribution ({', '.join(fixed)}) take {round(taken)} and the others can hold 0 to {room}"
        )
    rest = min(max(budget - taken, 0.0), room) / room if room else 0.0
    return {name: density.get(name, rest) for name in shapes}
