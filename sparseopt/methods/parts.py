"""The next mask of a layer whose active weights alone are kept, without making dense scores.

Scores of SET and RigL are made entry by entry, so they can be asked for one part of the layer after the other: what is held at a
time is a part, and the best entries so far. The result is that of `next_mask`, to the last tie. Other methods see dense tensors.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sparseopt.methods.method import Method
from sparseopt.topology.selection import take_lowest

PART = 1 << 18  # entries


def next_index(
    method: Method,
    index: Tensor,
    values: Tensor,
    grad: Tensor | None,
    size: int,
    fraction: float,
    generator: torch.Generator,
) -> Tensor:
    """`next_mask` by flat positions, ascending: of the active weights before (with their values) and after."""
    values = values.view(-1)
    count = math.floor(fraction * index.numel())
    if count == 0 or index.numel() == size:
        return index.clone()
    flat = None if grad is None else grad.reshape(-1)
    score = method.drop_score(values, None if flat is None else flat[index], generator)
    kept = index[~take_lowest(score, torch.ones_like(score, dtype=torch.bool), count)]

    def grow_score(start: int, stop: int) -> Tensor:
        first, last = torch.searchsorted(index, index.new_tensor([start, stop])).tolist()
        weight = values.new_zeros(stop - start)
        weight[index[first:last] - start] = values[first:last]
        return method.grow_score(weight, None if flat is None else flat[start:stop], generator)

    grown = highest_outside(grow_score, size, kept, count)
    return torch.cat([kept, grown]).sort().values


def in_parts(method: Method) -> bool:
    """Does the class itself say so? One derived from it may score in another way."""
    return bool(vars(type(method)).get("by_parts", False))


def highest_outside(score_of: Callable[[int, int], Tensor], size: int, taken: Tensor, count: int) -> Tensor:
    """Positions of the `count` highest scores outside the (ascending) taken ones, ascending; ties go to the lowest position."""
    best = taken.new_empty(0)
    scores: Tensor | None = None
    for start in range(0, size, PART):
        stop = min(start + PART, size)
        low = torch.nan_to_num(-score_of(start, stop), nan=math.inf, posinf=math.inf, neginf=-math.inf)
        first, last = torch.searchsorted(taken, taken.new_tensor([start, stop])).tolist()
        free = torch.ones_like(low, dtype=torch.bool)
        free[taken[first:last] - start] = False
        if scores is not None and scores.numel() == count:
            free &= low < scores.amax()
        found = free.nonzero().view(-1)
        best = torch.cat([best, (found + start).to(best)])
        scores = low[found] if scores is None else torch.cat([scores, low[found]])
        if scores.numel() > count:
            chosen = take_lowest(scores, torch.ones_like(scores, dtype=torch.bool), count)
            best, scores = best[chosen], scores[chosen]
    return best
