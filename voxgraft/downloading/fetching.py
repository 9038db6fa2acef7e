"""Files of a published base into its folder: what is there stays, what broke off goes on, hashes are compared."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from voxgraft import progress
from voxgraft.downloading.catalogue import PublishedBase, PublishedFile
from voxgraft.errors import FileError
from voxgraft.files import is_file, is_folder, sha256_of, write_error
from voxgraft.sharing.hub import HubFile, fetch_file, hub_files

__all__ = ["Wanted", "fetch", "planned", "published"]

PARTS_NAME = ".download"
"""In the base folder while files are fetched; what is in it is gone on with."""
SLACK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file to have: where it is, where it goes, and how it is known."""

    file: PublishedFile
    name: str
    place: str
    num_bytes: int
    sha256: str | None = None
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
        one: {entry[0]: entry for entry in hub_files(one)} for one in dict.fromkeys(f.repository for f in chosen)
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
            if not one.there:
                _fetch_one(one, folder)
                advance(one.num_bytes)
            hashes[one.place] = _checked_hash(one, folder / one.place)
    shutil.rmtree(folder / PARTS_NAME, ignore_errors=True)
    return hashes


def _of_listing(file: PublishedFile, listing: Mapping[str, HubFile], folder: Path) -> list[Wanted]:
    names = [name for name in listing if name.startswith(file.name)] if file.is_folder else [file.name]
    if not names or any(name not in listing for name in names):
        found = f"{file.repository} has no {file.name}"
        raise FileError("download-missing", found, expected=file.what)
    found_files = []
    for name in names:
        _, size, digest = listing[name]
        place = file.place + name.removeprefix(file.name) if file.is_folder else file.place
        there = is_file(folder / place) and (folder / place).stat().st_size == size
        found_files.append(Wanted(file, name, place, size, digest, there))
    return found_files


def _fetch_one(one: Wanted, folder: Path) -> None:
    target = folder / one.place
    parts = folder / PARTS_NAME / one.file.repository.replace("/", "--")
    fetched = fetch_file(one.file.repository, one.name, parts)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(fetched, target)
    except OSError as error:
        raise write_error(error, target) from None


def _checked_hash(one: Wanted, path: Path) -> str:
    actual = sha256_of(path)
    if one.sha256 is not None and actual != one.sha256:
        found = f"{one.place} has sha256 {actual[:12]}"
        expected = f"{one.sha256[:12]}, as {one.file.repository} has it"
        raise FileError("download-hash", found, expected=expected, where=path)
    return actual


def _require_room(folder: Path, num_bytes: int) -> None:
    there = next((one for one in folder.absolute().parents if is_folder(one)), None)
    free = shutil.disk_usage(there).free if there else None
    if free is not None and free < num_bytes + SLACK_BYTES:
        raise FileError("disk-too-small", f"{num_bytes:,} bytes are to come, {free:,} are free", where=folder)


def _stands(path: Path) -> bool:
    return is_file(path) or (is_folder(path) and any(path.iterdir()))
