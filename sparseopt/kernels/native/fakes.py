"""Fake implementations of the operators, by which torch.compile and FakeTensorMode run them without data.

All operators write into tensors they are given: there are no shapes to infer.
"""

import torch

NAMES = (
    "conv_forward",
    "make_activation",
    "conv_backward",
    "batch_norm_forward",
    "batch_norm_backward",
    "scatter",
    "pack",
    "unpack",
    "pool_forward",
    "pool_backward",
    "shortcut_backward",
    "finish_gradient",
    "tile_samples",
    "untile_samples",
    "chain_forward",
    "chain_backward",
    "sum_features",
    "normalise",
    "sum_gradients",
    "normalise_backward",
)


def register() -> None:
    for name in NAMES:
        torch.library.register_fake(f"sparseopt::{name}", lambda *arguments: None)
    # Whether the values are those before is a question about data; in a training step they mostly are.
    torch.library.register_fake("sparseopt::gather", lambda dense, *others: [True for _ in dense])
