"""Torch's elementwise optimizers, each with what it can do: shared by the tests of packed storage."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, optim

import sparseopt as so

Base = Callable[[Iterable[Tensor]], optim.Optimizer]

BASES: dict[str, Base] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "fused sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4, fused=True),
    "maximize": lambda p: optim.SGD(p, lr=1e-3, momentum=0.9, maximize=True),
    "adam": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "adamw, one by one": lambda p: optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "amsgrad": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True, foreach=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "adadelta": lambda p: optim.Adadelta(p),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "radam": lambda p: optim.RAdam(p, lr=0.01),
    "adamax": lambda p: optim.Adamax(p, lr=0.01),
    "asgd": lambda p: optim.ASGD(p, lr=0.05, t0=5),
    "rprop": lambda p: optim.Rprop(p, lr=0.01),
    "ham": lambda p: so.HAM(optim.SGD(p, lr=0.05, momentum=0.9)),
}
