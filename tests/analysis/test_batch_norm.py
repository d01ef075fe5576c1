"""BatchNorm's backward pass, and the amplification it implies, against torch in float64."""

import torch
from torch.nn import functional as F

from sparseopt.analysis.batch_norm import amplification, normalise, normalise_backward

DRAW = torch.Generator().manual_seed(0)


def _preactivations(neurons: int = 5, samples: int = 17) -> torch.Tensor:
    return 2 + 3 * torch.randn(neurons, samples, generator=DRAW, dtype=torch.float64)


def test_backward_identity_is_what_autograd_computes() -> None:
    x = _preactivations().requires_grad_()
    upstream = torch.randn(x.shape, generator=DRAW, dtype=torch.float64)
    expected = F.batch_norm(x.T, None, None, training=True, eps=1e-3)
    expected.T.backward(upstream)
    normalised, sigma = normalise(x.detach(), eps=1e-3)
    assert x.grad is not None
    torch.testing.assert_close(normalised, expected.T.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        normalise_backward(upstream, normalised, sigma), x.grad, rtol=1e-12, atol=1e-12
    )


def test_shrinking_the_preactivations_amplifies_their_gradient_exactly() -> None:
    x, upstream = _preactivations(), torch.randn(5, 17, generator=DRAW, dtype=torch.float64)
    sparsity = torch.tensor([0.0, 0.5, 0.9, 0.95, 0.99], dtype=torch.float64)
    shrunk = x * (1 - sparsity).sqrt().unsqueeze(1)
    dense, sparse = (normalise_backward(upstream, *normalise(values, eps=0.0)) for values in (x, shrunk))
    torch.testing.assert_close(sparse, dense * amplification(sparsity).unsqueeze(1), rtol=1e-11, atol=1e-12)


def test_gradient_is_orthogonal_to_the_preactivations_and_sums_to_zero() -> None:
    x = _preactivations()
    normalised, sigma = normalise(x, eps=0.0)
    grad = normalise_backward(torch.randn(x.shape, generator=DRAW, dtype=torch.float64), normalised, sigma)
    torch.testing.assert_close(grad.sum(dim=1), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close((grad * x).sum(dim=1), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)
