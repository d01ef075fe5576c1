"""Stateless randomness: every draw comes from a generator made for the occasion and keyed by what it is for.

No generator is carried from step to step, so there is nothing to save, nothing that differs between the ranks of a
distributed run, and a resumed run draws what the uninterrupted one would have drawn. Draws are made on the CPU and moved,
so that a network gets the same masks on every device, whatever the process's default device and dtype are.
"""

import hashlib

import torch
from torch import Tensor


def generator(seed: int, *key: int | str) -> torch.Generator:
    """A CPU generator that depends on the seed and the key alone, e.g. `generator(seed, step, layer_name)`.

    >>> a, b = generator(0, 100, "fc.weight"), generator(0, 100, "fc.weight")
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).all())
    True
    """
    return torch.Generator().manual_seed(keyed(seed, *key))


def keyed(seed: int, *key: int | str) -> int:
    """A seed that depends on these alone."""
    text = "\x1f".join([str(seed), *map(str, key)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def uniform(draw: torch.Generator | None, *shape: int) -> Tensor:
    """Numbers in [0, 1), all equally likely; from torch's own generator where none is given."""
    draw = torch.default_generator if draw is None else draw
    return torch.rand(shape, generator=draw, device=draw.device, dtype=torch.float32)


def permutation(draw: torch.Generator, n: int) -> Tensor:
    """0, ..., n - 1 in random order."""
    return torch.randperm(n, generator=draw, device=draw.device)
