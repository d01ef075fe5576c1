"""What was measured on this machine, in memory and in a file: by the library, the machine and the shape of a layer.

The file is a cache and nothing else, private as the libraries are: what it says is checked against the ways there are, and where
it cannot be read or written, measuring starts anew.
"""

import functools
import json
import logging
import os
import platform
import threading
from pathlib import Path
from typing import Any

from sparseopt.kernels.native.cache import DIGEST, Folder, cache_root
from sparseopt.kernels.native.compiler import fingerprint
from sparseopt.kernels.native.levels import chosen

logger = logging.getLogger(__name__)

FORMAT = 2


class Measurements:
    """The fastest way of every layer shape that was tried. `folder`: None if nothing is to be kept."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self.folder, self.name, self._changed = folder, name, False
        self._known = self._read()
        self._lock = threading.Lock()  # engines measure from several threads

    def get(self, key: str) -> tuple[tuple[int, ...], float] | None:
        """Numbers that say how, and the seconds it took."""
        match self._known.get(key):
            case [[*numbers], float(seconds)] if 0 <= seconds < 1e6:
                return (tuple(numbers), seconds) if all(type(each) is int for each in numbers) else None
        return None

    def put(self, key: str, numbers: tuple[int, ...], seconds: float) -> None:
        with self._lock:
            self._known[key] = [list(numbers), float(seconds)]
            self._changed = True

    def keep(self) -> None:
        """Write what is new, together with what other processes have found in the meantime."""
        with self._lock:
            if self.folder is None or not self._changed:
                return
            self._known = {**self._read(), **self._known}
            self._changed = False
            try:
                folder = Folder(self.folder)
                try:
                    folder.write(self.name, json.dumps(self._known, indent=0).encode())
                finally:
                    folder.close()
            except OSError as error:
                logger.info("measurements of layers are not kept: %s", error)
                self.folder = None

    def _read(self) -> dict[str, Any]:
        if self.folder is None:
            return {}
        try:
            folder = Folder(self.folder)
            try:
                descriptor = folder.open(self.name)
            finally:
                folder.close()
            if descriptor is None:
                return {}
            with os.fdopen(descriptor, "rb") as file:
                found = json.loads(file.read()[:-DIGEST])
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


@functools.cache
def measurements() -> Measurements:
    """Of this machine, the instruction set in use and these kernels: others are measured anew."""
    machine = "".join(letter if letter.isalnum() else "-" for letter in _processor())
    try:
        folder = cache_root().absolute() / "kernels"
    except RuntimeError:  # there is no home
        folder = None
    return Measurements(folder, f"layers-{FORMAT}-{chosen()}-{fingerprint()}-{machine}.json")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith(("model name", "Hardware")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
