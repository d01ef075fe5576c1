"""Checkpoints that can be trusted: whole, verified, and free of code.

A checkpoint is one file: a line with the SHA-256 of what follows, then what `torch.save` makes of tensors and
plain values. The two newest are kept; where the newest does not match its checksum, the one before it is used.
"""

import hashlib
import io
import logging
from pathlib import Path
from typing import Any

import torch

from sparseopt.lab.errors import UserError
from sparseopt.lab.system.files import remove_temporary, reporting_write_errors, write_bytes

log = logging.getLogger(__name__)

MAGIC = b"sparseopt-checkpoint-1 "
KEPT = 2


class Checkpoints:
    """The checkpoints of one run, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the state after a step, then remove the others but for the one before it.

        One of a later step can only be a damaged one that the run had to go back from.
        """
        path = self.folder / f"step-{step:010d}.ckpt"
        with reporting_write_errors(path):
            self.folder.mkdir(exist_ok=True)
        write_bytes(path, encode(state))
        before = [other for other in self.newest_first() if other <= path]
        for other in set(self.newest_first()) - set(before[:KEPT]):
            try:
                other.unlink()
            except OSError as error:
                log.warning("checkpoint %s cannot be removed: %s", other, error.strerror)

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The newest state that is whole; None if there is none. Damaged ones are reported. Nothing is changed on disk.

        Where there are some and none can be read it is a `UserError`: to begin anew would replace them.
        """
        unread: list[str] = []
        for path in self.newest_first():
            try:
                state = decode(path.read_bytes(), device)
            except FileNotFoundError:  # its run goes on meanwhile, and has replaced it
                log.info("checkpoint %s is gone", path)
            except ValueError as error:
                unread.append(f"{path} is damaged ({error})")
            except OSError as error:
                unread.append(f"{path} cannot be read ({error.strerror})")
            else:
                for reason in unread:
                    log.warning("checkpoint %s; going back to the one before it", reason)
                return state
        if unread:
            raise UserError(
                f"none of the checkpoints can be used: {'; '.join(unread)}. Put that right, or move them away and begin anew"
            )
        return None

    def newest_step(self) -> int | None:
        """The step of the newest, whole or not; None if there is none."""
        newest = self.newest_first()
        return int(newest[0].stem.removeprefix("step-")) if newest else None

    def remove_leftovers(self) -> None:
        """Remove what a killed writer has left."""
        remove_temporary(self.folder)

    def newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.ckpt"), reverse=True)


def encode(state: dict[str, Any]) -> bytes:
    """The bytes of a checkpoint file."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    return MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload


def decode(contents: bytes, device: torch.device) -> dict[str, Any]:
    """The state in a checkpoint file; ValueError if it is not exactly what was written."""
    header, newline, payload = contents.partition(b"\n")
    if not header.startswith(MAGIC) or not newline:
        raise ValueError("it is no checkpoint of this program")
    if header.removeprefix(MAGIC).decode(errors="replace") != hashlib.sha256(payload).hexdigest():
        raise ValueError("its checksum does not match")
    try:
        state = torch.load(io.BytesIO(payload), map_location=device, weights_only=True)
    except Exception as error:  # a forged file can make the reader stumble over anything
        raise ValueError(f"it cannot be read: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(state, dict):
        raise ValueError("it holds no state")
    return state
