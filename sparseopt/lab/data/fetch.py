"""Official files: looked for, else downloaded, and always verified by their md5 before anything is read.

A folder given as data directory is read, and receives downloads. What is unpacked goes to the cache folder,
so that a data directory may be shared and read-only.
"""

import hashlib
import http.client
import os
import secrets
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparseopt.kernels.native.cache import cache_root
from sparseopt.lab.errors import UserError

TIMEOUT = 30.0  # seconds without an answer after which a server counts as unreachable


@dataclass(frozen=True)
class OfficialFile:
    """A file as its authors published it."""

    name: str
    md5: str
    url: str


@dataclass(frozen=True)
class OfficialArchive:
    """A tar archive as published, and the files in it that are wanted, each with its md5."""

    file: OfficialFile
    folder: str
    members: Mapping[str, str]


def search_path(data_dir: Path | None) -> list[Path]:
    """The folders to look in: the given one (else $SPARSEOPT_DATA), then the cache."""
    if data_dir is not None and not data_dir.is_dir():
        raise UserError(
            f"--data-dir {data_dir} is not a folder; create it or name the one that holds the data"
        )
    if data_dir is None and (default := os.environ.get("SPARSEOPT_DATA")):
        data_dir = Path(default)
    return [cache_root()] if data_dir is None else [data_dir, cache_root()]


def read_file(file: OfficialFile, data_dir: Path | None, subfolders: tuple[str, ...] = ()) -> bytes:
    """The verified contents of a file, from the data directory or one of its subfolders, else downloaded."""
    folders = search_path(data_dir)
    for folder in folders:
        for place in (folder, *(folder / subfolder for subfolder in subfolders)):
            if (place / file.name).is_file():
                return read_verified(place / file.name, file.md5)
    return read_verified(download(file, folders[0]), file.md5)


def read_members(archive: OfficialArchive, data_dir: Path | None) -> dict[str, bytes]:
    """The verified contents of an archive's files: unpacked already, or from the archive, else downloaded."""
    folders = search_path(data_dir)
    for folder in folders:
        if _unpacked(archive, folder):
            place = folder / archive.folder
            return {name: read_verified(place / name, md5) for name, md5 in archive.members.items()}
    packed = next((path for folder in folders if (path := _packed(archive, folder))), None)
    unpack(packed or download(archive.file, folders[0]), archive, cache_root())
    return read_members(archive, data_dir)


def read_verified(path: Path, md5: str) -> bytes:
    """The contents of a file, refused unless they have the md5 of the official one."""
    contents = path.read_bytes()
    found = hashlib.md5(contents, usedforsecurity=False).hexdigest()
    if found != md5:
        raise UserError(
            f"{path} is not the official file: its md5 is {found}, not {md5}; replace or delete it"
        )
    return contents


def download(file: OfficialFile, folder: Path) -> Path:
    """Fetch a file into a folder. It gets its name only once it is complete and verified."""
    part = folder / f".{file.name}.{secrets.token_hex(6)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with part.open("xb") as target, urllib.request.urlopen(file.url, timeout=TIMEOUT) as answer:
            shutil.copyfileobj(answer, target)
        if hashlib.md5(part.read_bytes(), usedforsecurity=False).hexdigest() != file.md5:
            raise UserError(
                f"what {file.url} sent is not the official {file.name}, by its md5: the download was cut short or changed on the "
                f"way; try again, or put the file into {folder}"
            )
        return part.replace(folder / file.name)
    except (OSError, http.client.HTTPException) as error:  # URLError and a timeout are kinds of OSError
        reason = error.reason if isinstance(error, urllib.error.URLError) else error or type(error).__name__
        raise UserError(
            f"{file.name} is not in {folder} and cannot be downloaded ({reason}); put {file.url} there"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def unpack(packed: Path, archive: OfficialArchive, folder: Path) -> None:
    """Unpack the wanted files of an archive into `folder`: they appear together, and only if all are right.

    The published archive must have its md5; of any other packing of it, every file must have its own.
    """
    if packed.name == archive.file.name:
        read_verified(packed, archive.file.md5)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        try:
            with tarfile.open(packed) as tar:
                for name in archive.members:
                    tar.extract(f"{archive.folder}/{name}", scratch, filter="data")
        except (tarfile.TarError, KeyError, EOFError, OSError) as error:
            raise UserError(
                f"{packed} cannot be unpacked ({error}); replace it by {archive.file.url}"
            ) from error
        unpacked = Path(scratch) / archive.folder
        for name, md5 in archive.members.items():
            read_verified(unpacked / name, md5)
        if not _unpacked(archive, folder):  # another process may have been faster
            shutil.rmtree(folder / archive.folder, ignore_errors=True)
            unpacked.replace(folder / archive.folder)


def _unpacked(archive: OfficialArchive, folder: Path) -> bool:
    return all((folder / archive.folder / name).is_file() for name in archive.members)


def _packed(archive: OfficialArchive, folder: Path) -> Path | None:
    """The archive in a folder, in the published packing or another one."""
    published = folder / archive.file.name
    others = sorted(folder.glob(f"{archive.folder}.tar*"))
    return published if published.is_file() else next(iter(others), None)
