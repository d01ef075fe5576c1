"""The folder of one run: what lies where, who may write, and how it is read back.

    config.json         the configuration, and what it ran on: versions, revision, device
    metrics.jsonl       one line an epoch
    checkpoints/        the two newest states
    tensorboard/        curves
    summary.json        the result; there once the run is complete
    model.safetensors   the final network
    sparse.safetensors  the network in a small file, where somebody has exported it

All names are fixed here: no configuration, from wherever it comes, can make a run write elsewhere.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from sparseopt.lab.errors import UserError
from sparseopt.lab.runs.checkpoint import Checkpoints
from sparseopt.lab.runs.row import Row
from sparseopt.lab.system.files import (
    parse_json,
    read_json,
    remove_temporary,
    reporting_write_errors,
    write_bytes,
)

REPAIR = "the same command writes it anew from the last checkpoint (of a complete run, remove its summary.json first)"


class InUse(UserError):
    """Another process writes this run."""


class RunDir:
    """A run's folder, existing or to be made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.metrics_file = path / "metrics.jsonl"
        self.summary_file = path / "summary.json"
        self.diverged_file = path / "diverged.json"
        self.model_file = path / "model.safetensors"
        self.packed_file = path / "sparse.safetensors"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._lock_file = path / "lock"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that writes here; refuse if another one is. The system frees the lock of a dead one.

        A folder that is made for this and holds nothing in the end, because the run was refused, is removed again.
        """
        new = not self.path.exists()
        with self._own_lock() as lock:
            with reporting_write_errors(self.path):
                lock.truncate(0)
                lock.write(f"{os.getpid()}\n".encode())
                remove_temporary(self.path)
                self.checkpoints.remove_leftovers()
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # it may be gone, or another process come in between
                    if new and os.listdir(self.path) == [self._lock_file.name]:
                        self._lock_file.unlink()
                        self.path.rmdir()

    def _own_lock(self) -> FileIO:
        """The lock file, made if need be and locked. One that its owner has removed meanwhile locks nothing: try again."""
        while True:
            with reporting_write_errors(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                try:
                    lock = self._lock_file.open("a+b", buffering=0)
                except FileNotFoundError:
                    continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock.fileno()), self._lock_file.stat()):
                    return lock
            except FileNotFoundError:
                pass
            except BlockingIOError:
                lock.seek(0)
                owner = lock.read().decode().strip() or "unknown"
                lock.close()
                raise InUse(
                    f"{self.path} is in use by process {owner}; wait for it, or choose another --out"
                ) from None
            lock.close()

    def running(self) -> bool:
        """Is a process training here now?"""
        if not self._lock_file.exists():
            return False
        with self._lock_file.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def write_metrics(self, rows: list[Row]) -> None:
        """Make the metrics file consist of exactly these rows."""
        write_bytes(self.metrics_file, "".join(_line(row) for row in rows).encode())

    def append_metrics(self, row: Row) -> None:
        with reporting_write_errors(self.metrics_file), self.metrics_file.open("a") as file:
            file.write(_line(row))

    def metrics(self) -> list[Row]:
        """The rows so far; a last line that is still being written is left out."""
        if not self.metrics_file.exists():
            return []
        try:
            lines = self.metrics_file.read_text().splitlines(keepends=True)
            return [parse_json(line) for line in lines if line.endswith("\n")]
        except (ValueError, OSError) as error:
            raise UserError(f"{self.metrics_file} is damaged ({error}); {REPAIR}") from error

    def summary(self) -> dict[str, Any] | None:
        """The result, if the run is complete."""
        if not self.summary_file.exists():
            return None
        remedy = "remove it, and the same command writes it again from the last checkpoint"
        try:
            found = read_json(self.summary_file)
        except UserError as error:
            raise UserError(f"{error}; {remedy}") from error
        if not isinstance(found, dict) or "test_accuracy" not in found:
            raise UserError(f"{self.summary_file} has no test_accuracy; {remedy}")
        return found


def _line(row: Row) -> str:
    return json.dumps(row) + "\n"
