"""By how much a sparse layer's gradients exceed those of its dense twin: one number a layer.

Under BatchNorm theory says 1/sqrt(1 - s). It speaks of the pre-activation gradient; the gradient of an active weight is that
times an input that masking does not touch, so the same factor is seen there. Only active entries are compared: averaging a
sparse gradient over entries that cannot move would mix the factor with the density.
"""

from dataclasses import dataclass

from torch import Tensor

from sparseopt.analysis.twins import Gradients


@dataclass(frozen=True)
class GradientRatio:
    """Mean |gradient|, sparse over dense: of the active weights, of the pre-activations, and of the weights by batch."""

    weight: float
    preactivation: float
    by_batch: Tensor


def gradient_ratio(dense: Gradients, sparse: Gradients, mask: Tensor) -> GradientRatio:
    """The ratios of mean absolute gradients, both twins seen on the same batches."""
    active = mask.sum()
    dense_weight, sparse_weight = ((g.weight.abs() * mask).sum(dim=(1, 2)) / active for g in (dense, sparse))
    return GradientRatio(
        weight=float(sparse_weight.mean() / dense_weight.mean()),
        preactivation=float(sparse.preactivation.abs().mean() / dense.preactivation.abs().mean()),
        by_batch=sparse_weight / dense_weight,
    )
