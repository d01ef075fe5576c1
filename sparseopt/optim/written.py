"""Weights that somebody else has written between two steps: a checkpoint's, of a dense network or of other masks.

A step holds to their masks the layers that it moves. What others write may lie outside the masks, and in layers that no step
moves; so a step begins with the layers that were written to since the one before, and tells what it had to set to zero.
"""

import logging
from collections.abc import Mapping

import torch
from torch import Tensor

from sparseopt.topology.storage import Storage

log = logging.getLogger(__name__)


class Written:
    """How often the weights had been written to at the end of the last step."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._always = False  # do others write at every step, as clamping and SAM do?

    def note(self, layers: Mapping[str, Storage]) -> None:
        self._versions = {name: _version(each.parameter) for name, each in layers.items()}

    def hold(self, layers: Mapping[str, Storage]) -> None:
        """Set to zero what was written outside the masks, and say how much it was, unless that goes on at every step."""
        versions = self._versions
        written = [each for name, each in layers.items() if versions.get(name) != _version(each.parameter)]
        if written and not self._always:
            counts = [each.outside() for each in written]
            outside = int(torch.stack([count.to(counts[0].device) for count in counts]).sum())
            if outside:
                log.warning(
                    "%d weights lie outside the masks and are set to zero: if they were loaded, load their masks as well "
                    "(optimizer.load_state_dict or topology.load_state_dict), or load them before sparsify(model, "
                    "masks='nonzero')",
                    outside,
                )
        for each in written:
            each.apply()
        self._always = bool(written and versions)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
