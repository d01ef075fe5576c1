"""Stateless randomness: every draw comes from a generator made for the occasion and keyed by what it is for.

No generator is carried from step to step, so there is nothing to save, nothing that differs between the ranks of a
distributed run, and a resumed run draws what the uninterrupted one would have drawn. Draws are made on the CPU and moved,
so that a network gets the same masks on every device.
"""

import hashlib

import torch


def generator(seed: int, *key: int | str) -> torch.Generator:
    """A CPU generator that depends on the seed and the key alone, e.g. `generator(seed, step, layer_name)`.

    >>> a, b = generator(0, 100, "fc.weight"), generator(0, 100, "fc.weight")
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).all())
    True
    """
    text = "\x1f".join([str(seed), *map(str, key)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
