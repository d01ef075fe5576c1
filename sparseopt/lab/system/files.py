"""Files that are whole or not there: written under another name, synced, renamed, and the folder synced as well.

Whoever reads a file of a run never sees half of one, at whatever moment the writer was killed, and however many write it at once:
then it is one of theirs.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparseopt.lab.errors import DiskFull, UserError

TEMPORARY = ".tmp"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of the disk, the quota, the process


def write_bytes(path: Path, contents: bytes) -> None:
    """Replace a file, or make it, in one step."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMPORARY}")
    with reporting_write_errors(path):
        try:
            temporary.write_bytes(contents)
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Nobody else who asks for the same folder is let in before this is over: for files that are read, and written anew."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(
            OSError
        ):  # some network file systems have no locks: then files are whole all the same
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people and programs: indented, with a newline at its end."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


@contextlib.contextmanager
def reporting_write_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` of a write (disk full, read-only) into a UserError of one line that names the path."""
    try:
        yield
    except OSError as error:
        kind = DiskFull if error.errno in NO_ROOM else UserError
        reason = error.strerror or error
        raise kind(
            f"cannot write {path}: {reason}; put that right, and give the same command again"
        ) from error


def make_folder(path: Path) -> None:
    """Make a folder to write into, and those above it; refuse one that cannot be written before work begins."""
    with reporting_write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def remove_temporary(folder: Path) -> None:
    """Remove what a killed writer has left."""
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        value = parse_json(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} does not hold a JSON object; is it a file of a run?")
    return value


def parse_json(text: str) -> Any:
    """The value that a text from anywhere spells; ValueError unless it can be shown and written again.

    >>> parse_json('{"name": "\\\\udc80"}')
    Traceback (most recent call last):
    ValueError: it has characters that cannot be written
    """
    try:
        value = json.loads(text, parse_int=_whole)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except OverflowError:
        raise ValueError("it has a number that is too large") from None
    except UnicodeEncodeError:
        raise ValueError("it has characters that cannot be written") from None
    return value


def _whole(digits: str) -> int:
    """A whole number that one can calculate with; JSON's may be as long as they like."""
    float(int(digits))
    return int(digits)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
