"""Choose exactly k entries by score, the same ones on every device.

`torch.topk` finds the k-th score in linear time but leaves open which of several equal scores it returns. Here ties go to
the lowest flat index: everything beyond the k-th score is taken, then the first of those equal to it. No step depends on a
value read back from the device.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def take_lowest(score: Tensor, candidates: Tensor, k: int) -> Tensor:
    """Boolean mask of the k candidates with the lowest score; NaN counts as the highest.

    >>> take_lowest(torch.tensor([3.0, 1.0, 2.0, 1.0]), torch.tensor([True, False, True, True]), 2).tolist()
    [False, False, True, True]
    """
    inf = float("inf")
    return _take(torch.nan_to_num(score, nan=inf, posinf=inf, neginf=-inf), candidates, k)


def take_highest(score: Tensor, candidates: Tensor, k: int) -> Tensor:
    """Boolean mask of the k candidates with the highest score; NaN counts as the lowest."""
    return take_lowest(-score, candidates, k)


def globally_largest(weights: Mapping[str, Tensor], total: int, least: Mapping[str, int]) -> dict[str, int]:
    """How many of the `total` largest weights of the network lie in each layer.

    The `least` largest weights of each layer are among them in any case.
    """
    scores = [weight.abs().reshape(-1).double() for weight in weights.values()]
    always = [each.topk(least[name]).indices for name, each in zip(weights, scores, strict=True)]
    together = torch.cat(
        [
            each.index_fill(0, index, float("inf")).to(scores[0].device)
            for each, index in zip(scores, always, strict=True)
        ]
    )
    total = max(total, sum(least[name] for name in weights))
    taken = take_highest(together, torch.ones_like(together, dtype=torch.bool), total)
    parts = taken.split([each.numel() for each in scores])
    return {name: int(part.sum()) for name, part in zip(weights, parts, strict=True)}


def _take(score: Tensor, candidates: Tensor, k: int) -> Tensor:
    if k == 0:
        return torch.zeros_like(candidates)
    flat_candidates = candidates.reshape(-1)
    flat = score.reshape(-1).masked_fill(~flat_candidates, float("inf"))
    threshold = flat.topk(k, largest=False, sorted=False).values.amax()
    below = flat < threshold
    tied = (flat == threshold) & flat_candidates
    taken = below | (tied & (tied.cumsum(0) <= k - below.sum()))
    return taken.view(candidates.shape)
