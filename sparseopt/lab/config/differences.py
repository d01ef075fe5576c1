"""In what settings differ: the one place that compares them, whether of two runs, of a hundred, or of a run and its record."""

from collections.abc import Mapping, Sequence
from typing import Any

MOST = 3
"""Differences that a message names before it says that there are more."""


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names that have several values, where they have one at all.

    >>> differing([{"method": "dense", "lr": 0.1}, {"method": "rigl", "lr": 0.1, "sparsity": 0.9}])
    ['method']
    """
    names = dict.fromkeys(name for each in settings for name in each)
    values = {name: [each[name] for each in settings if name in each] for name in names}
    return [name for name, found in values.items() if any(value != found[0] for value in found)]


def contrasted(
    there: Mapping[str, Any], here: Mapping[str, Any], form: str = "is {there} there, {here} here"
) -> list[str]:
    """Each setting that both have and that differs, in words.

    >>> contrasted({"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0})
    ['lr is 0.1 there, 0.2 here']
    """
    return [f"{name} {form.format(there=there[name], here=here[name])}" for name in differing([there, here])]


def summarised(differences: Sequence[str]) -> str:
    """The first few differences, for one line of a message.

    >>> summarised(["a", "b", "c", "d"])
    'a; b; c; ...'
    """
    return "; ".join([*differences[:MOST], *(["..."] if len(differences) > MOST else [])])


def described(settings: Mapping[str, Any]) -> str:
    """Settings in as few words as tell what they are.

    >>> described({"method": "rigl", "lr": 0.1, "ham": False, "max_grad_norm": None})
    'rigl, lr 0.1, no ham, no max grad norm'
    >>> described({"exclude": ["*.shortcut.*", "fc.*"], "include": []})
    'exclude *.shortcut.* fc.*, no include'
    """
    return ", ".join(_setting(name, value) for name, value in settings.items())


def _setting(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    if value is None or value is False or value == []:
        return f"no {words}"
    if value is True:
        return words
    if isinstance(value, list):
        return f"{words} {' '.join(map(str, value))}"
    return value if isinstance(value, str) else f"{words} {value}"
