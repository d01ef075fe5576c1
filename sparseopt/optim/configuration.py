"""What an optimizer was set up with, as plain values: saved with its state, compared when that is loaded."""

import dataclasses
import logging
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any

from sparseopt.methods import Method

log = logging.getLogger(__name__)

PLAIN = (bool, int, float, str, NoneType)  # what `torch.load(weights_only=True)` takes back


def configuration(method: Method, **options: Any) -> dict[str, Any]:
    """The method, its settings and the optimizer's options. What is not plain is there by name or description."""
    settings = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    everything = {"method": type(method).__name__, **settings, **options}
    return {name: _plain(value) for name, value in everything.items()}


def warn_of_changes(saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Log each setting that is another one than when the state was saved. Changing it is allowed; overlooking it is not."""
    for option in sorted(saved.keys() | here.keys()):
        if saved.get(option) != here.get(option):
            log.warning("resuming with %s=%s; saved with %s", option, here.get(option), saved.get(option))


def _plain(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    address = r" at 0x[0-9a-fA-F]+"  # another one in every process
    return getattr(value, "__qualname__", None) or re.sub(address, "", repr(value))
