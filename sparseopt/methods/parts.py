"""The next mask of a layer whose active weights alone are kept, without making dense scores.

Scores of SET and RigL are made entry by entry, so they can be asked for one part of the layer after the other: what is held at a
time is a part of gradient and scores, and the best entries so far. The result is that of `next_mask`, to the last tie. Other
methods see dense tensors.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from sparseopt.methods.method import Method
from sparseopt.topology.selection import take_lowest

PART = 1 << 18  # entries


def next_index(
    method: Method,
    index: Tensor,
    values: Tensor,
    grad: Iterable[Tensor] | None,
    size: int,
    fraction: float,
    generator: torch.Generator,
) -> Tensor:
    """`next_mask` by flat positions, ascending: of the active weights before (with their values) and after.

    `grad` is the gradient in parts, first to last.
    """
    values = values.view(-1)
    count = math.floor(fraction * index.numel())
    if count == 0 or index.numel() == size:
        return index.clone()
    score = method.drop_score(values, None, generator)
    kept = index[~take_lowest(score, torch.ones_like(score, dtype=torch.bool), count)]

    def grow_scores() -> Iterator[Tensor]:
        start = 0
        for length, part in _without(size) if grad is None else ((each.numel(), each) for each in grad):
            where = within(index, start, start + length)
            weight = values.new_zeros(length)
            weight[index[where] - start] = values[where]
            yield method.grow_score(weight, None if part is None else part.reshape(-1), generator)
            start += length

    grown = highest_outside(grow_scores(), kept, count)
    return torch.cat([kept, grown]).sort().values


def _without(size: int) -> Iterator[tuple[int, None]]:
    """Lengths of the parts of a layer whose gradient nobody reads."""
    return ((min(PART, size - start), None) for start in range(0, size, PART))


def in_parts(method: Method) -> bool:
    """Does the class itself say so? One derived from it may score in another way."""
    return bool(vars(type(method)).get("by_parts", False))


def highest_outside(parts: Iterable[Tensor], taken: Tensor, count: int) -> Tensor:
    """Positions of the `count` highest scores outside the (ascending) taken ones, ascending; ties go to the lowest position.

    The scores come in parts, first to last.
    """
    best = taken.new_empty(0)
    scores: Tensor | None = None
    start = 0
    for part in parts:
        low = torch.nan_to_num(-part, nan=math.inf, posinf=math.inf, neginf=-math.inf)
        free = torch.ones_like(low, dtype=torch.bool)
        free[taken[within(taken, start, start + part.numel())] - start] = False
        if scores is not None and scores.numel() == count:
            free &= low < scores.amax()
        found = free.nonzero().view(-1)
        best = torch.cat([best, (found + start).to(best)])
        scores = low[found] if scores is None else torch.cat([scores, low[found]])
        if scores.numel() > count:
            chosen = take_lowest(scores, torch.ones_like(scores, dtype=torch.bool), count)
            best, scores = best[chosen], scores[chosen]
        start += part.numel()
    return best


def within(index: Tensor, start: int, stop: int) -> slice:
    """Where in an ascending index the positions from start to stop are."""
    return slice(*torch.searchsorted(index, index.new_tensor([start, stop])).tolist())
