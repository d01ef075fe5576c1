"""Fake implementations of the operators, by which torch.compile and FakeTensorMode run them without data.

Operators write into tensors they are given, so there are no shapes to infer. Those that answer a question about memory give the
answer that is the usual one.
"""

from collections.abc import Callable
from typing import Any

import torch

NAMES = (
    "conv_forward",
    "make_activation",
    "conv_backward",
    "batch_norm_forward",
    "batch_norm_backward",
    "infer",
    "scatter",
    "pack",
    "unpack",
    "pool_forward",
    "pool_backward",
    "shortcut_backward",
    "finish_gradient",
    "linear_forward",
    "linear_backward",
)
ANSWERS: dict[str, Callable[..., Any]] = {
    "gather": lambda dense, *others: [True for _ in dense],
    "scatter_over": lambda *arguments: True,
    "is_shared": lambda *arguments: False,
}


def register() -> None:
    for name in NAMES:
        torch.library.register_fake(f"sparseopt::{name}", lambda *arguments: None)
    for name, answer in ANSWERS.items():
        torch.library.register_fake(f"sparseopt::{name}", answer)
