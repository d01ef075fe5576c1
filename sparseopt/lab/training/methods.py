"""The method of a configuration: which class its name stands for, and which settings it takes from there.

A method's own settings, those that no other method has, are `--method-options lam=0.2 soft=True`: arguments of its
constructor, which also override what it would take from the configuration.
"""

import ast
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import sparseopt as so
from sparseopt.lab.config.recipes import Config
from sparseopt.lab.errors import UserError

SCHEDULE = ("drop_fraction", "every", "until", "drop_decay")
SHARED = ("sparsity", "distribution")


class Kind(NamedTuple):
    """A class of method, and the settings of the configuration that are arguments of its constructor."""

    make: type[so.Method]
    takes: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "dense": Kind(so.Static),  # nothing moves
    "static": Kind(so.Static),
    "set": Kind(so.SET, SCHEDULE),
    "rigl": Kind(so.RigL, (*SCHEDULE, "grow_from")),
    "gse": Kind(so.GSE, (*SCHEDULE, "grow_from")),
    "srigl": Kind(so.SRigL, (*SCHEDULE, "grow_from")),
    "mest": Kind(so.MEST, SCHEDULE),
    "snfs": Kind(so.SNFS, SCHEDULE),
    "dsr": Kind(so.DSR, ("every", "until")),
    "deepr": Kind(so.DeepR),
    "gmp": Kind(so.GMP, ("every", "until", *SHARED)),
    "granet": Kind(so.GraNet, ("every", *SHARED)),
    "acdc": Kind(so.ACDC, SHARED),
    "topkast": Kind(so.TopKAST, SHARED),
    "annealed": Kind(so.AnnealedTopK, ("sparsity",)),
    "srste": Kind(so.SRSTE),
}
"""By the name that `--method` has; "nm", RigL held to n:m, is made of two."""


def build_method(config: Config, total_steps: int) -> so.Method:
    """The rule by which connections move."""
    own = _own_options(config)
    if config.method == "nm":
        numbers = {name: own.pop(name) for name in ("n", "m") if name in own}
        rigl = _make(KINDS["rigl"], config, total_steps, own)
        method = _called(config, functools.partial(so.NM, rigl, **numbers))
    else:
        method = _make(KINDS[config.method], config, total_steps, own)
    if isinstance(method, so.NM | so.SRSTE) and abs(config.sparsity - (1 - method.n / method.m)) > 1e-9:
        raise UserError(
            f"--method {config.method} keeps {method.n} of every {method.m}: give --sparsity "
            f"{1 - method.n / method.m:g}, got {config.sparsity:g}"
        )
    return method


def _make(kind: Kind, config: Config, total_steps: int, own: dict[str, Any]) -> so.Method:
    options = {name: getattr(config, name) for name in kind.takes} | own
    if kind.make is so.TopKAST:  # twice as many weights learn as are used, unless it is said
        options.setdefault("backward_sparsity", max(0.0, 2 * config.sparsity - 1))
    known = {field.name for field in dataclasses.fields(kind.make)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UserError(
            f"--method-options {unknown[0]}: {config.method} has no such setting; it has "
            f"{', '.join(sorted(known - {'total_steps'}))}"
        )
    return _called(config, functools.partial(kind.make, total_steps=total_steps, **options))


def _called(config: Config, make: Callable[[], so.Method]) -> so.Method:
    try:
        return make()
    except TypeError as error:  # a word, say, where a number is due
        raise UserError(f"--method-options {' '.join(config.method_options)}: {error}") from error


def _own_options(config: Config) -> dict[str, Any]:
    """`lam=0.2 soft=True` as arguments; what is no number, bool or None is a word."""
    options: dict[str, Any] = {}
    for text in config.method_options:
        name, found, value = text.partition("=")
        if not found:
            raise UserError(f"--method-options must be NAME=VALUE, got {text!r}")
        try:
            options[name.replace("-", "_")] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name.replace("-", "_")] = value
    return options
