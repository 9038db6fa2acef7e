"""Files of a published base into its folder: what is there stays, what broke off goes on, hashes are compared."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from voxgraft import progress
from voxgraft.downloading.catalogue import PublishedBase, PublishedFile
from voxgraft.errors import FileError
from voxgraft.files import free_bytes, is_file, is_folder, read_bytes, sha256_of, write_error
from voxgraft.sharing.hub import HubFile, fetch_file, hub_files

__all__ = ["Wanted", "fetch", "planned", "published"]

PARTS_NAME = ".download"
"""In the base folder while files are fetched; what is in it is gone on with."""
SLACK_BYTES = 256 << 20
MAX_SMALL_BYTES = 256 << 20
"""A hub keeps no file of that size in git itself."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file to have: where it is, where it goes, and how it is known."""

    file: PublishedFile
    name: str
    place: str
    num_bytes: int
    sha256: str | None = None
    git_id: str | None = None
    """Of a small file, for which the hub keeps no SHA-256."""
    there: bool = False


def planned(base: PublishedBase, folder: Path, *, optional: bool) -> list[Wanted]:
    """The list by heart, without a network: sizes are about right."""
    chosen = [file for file in base.files if file.needed or optional]
    return [
        Wanted(file, file.name, file.place, file.about_bytes, there=_stands(folder / file.place)) for file in chosen
    ]


def published(base: PublishedBase, folder: Path, *, optional: bool) -> list[Wanted]:
    """The same as the hub has it, with sizes and hashes; folders file by file."""
    chosen = [file for file in base.files if file.needed or optional]
    listings = {
        one: {entry.name: entry for entry in hub_files(one)} for one in dict.fromkeys(f.repository for f in chosen)
    }
    return [wanted for file in chosen for wanted in _of_listing(file, listings[file.repository], folder)]


def fetch(wanted: Iterable[Wanted], folder: Path) -> dict[str, str]:
    """Fetch what is not there; SHA-256 by place, of all of them."""
    wanted = list(wanted)
    missing = [one for one in wanted if not one.there]
    _require_room(folder, sum(one.num_bytes for one in missing))
    hashes: dict[str, str] = {}
    with progress.task("fetching", sum(one.num_bytes for one in missing)) as advance:
        for one in wanted:
            if one.there:
                hashes[one.place] = _checked_hash(one, folder / one.place)
                continue
            hashes[one.place] = _fetch_one(one, folder)
            advance(one.num_bytes)
    shutil.rmtree(folder / PARTS_NAME, ignore_errors=True)
    return hashes


def _of_listing(file: PublishedFile, listing: Mapping[str, HubFile], folder: Path) -> list[Wanted]:
    names = [name for name in listing if name.startswith(file.name)] if file.is_folder else [file.name]
    if not names or any(name not in listing for name in names):
        found = f"{file.repository} has no {file.name}"
        raise FileError("download-missing", found, expected=file.what)
    found_files = []
    for name in names:
        entry = listing[name]
        place = file.place + name.removeprefix(file.name) if file.is_folder else file.place
        there = is_file(folder / place) and (folder / place).stat().st_size == entry.num_bytes
        found_files.append(Wanted(file, name, place, entry.num_bytes, entry.sha256, entry.git_id, there))
    return found_files


def _fetch_one(one: Wanted, folder: Path) -> str:
    """Into its place once it is known to be the right one; a wrong one is removed, so that the next call fetches it."""
    target = folder / one.place
    parts = folder / PARTS_NAME / one.file.repository.replace("/", "--")
    fetched = fetch_file(one.file.repository, one.name, parts)
    try:
        digest = _checked_hash(one, fetched)
    except FileError:
        fetched.unlink(missing_ok=True)
        raise
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(fetched, target)
    except OSError as error:
        raise write_error(error, target) from None
    return digest


def _checked_hash(one: Wanted, path: Path) -> str:
    actual = sha256_of(path)
    stated, found = one.sha256, actual
    if stated is None and one.git_id is not None:
        stated, found = one.git_id, _git_id(path)
    if stated is not None and found != stated:
        kind = "sha256" if one.sha256 else "git id"
        expected = f"{stated[:12]}, as {one.file.repository} has it"
        raise FileError("download-hash", f"{one.place} has {kind} {found[:12]}", expected=expected, where=path)
    return actual


def _git_id(path: Path) -> str:
    """What git calls a file of these bytes."""
    data = read_bytes(path, MAX_SMALL_BYTES)
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _require_room(folder: Path, num_bytes: int) -> None:
    free = free_bytes(folder)
    if free is not None and free < num_bytes + SLACK_BYTES:
        raise FileError("disk-too-small", f"{num_bytes:,} bytes are to come, {free:,} are free", where=folder)


def _stands(path: Path) -> bool:
    return is_file(path) or (is_folder(path) and any(path.iterdir()))
