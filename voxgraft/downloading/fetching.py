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
from voxgraft.files import build_write_error, compute_sha256, free_disk_bytes, is_file, is_folder, read_bytes
from voxgraft.sharing.hub import HubFile, download_hub_file, list_hub_files

__all__ = ["DownloadItem", "download_missing_files", "list_published_files", "plan_download_offline"]

PARTIAL_FOLDER_NAME = ".download"
"""In the base folder while files are fetched; what is in it is gone on with."""
DOWNLOAD_SLACK_BYTES = 256 << 20
MAX_GIT_FILE_BYTES = 256 << 20
"""A hub keeps no file of that size in git itself."""


@dataclass(frozen=True, slots=True)
class DownloadItem:
    """One file to have: where it is, where it goes, and how it is known."""

    file: PublishedFile
    name: str
    place: str
    num_bytes: int
    sha256: str | None = None
    git_id: str | None = None
    """Of a small file, for which the hub keeps no SHA-256."""
    there: bool = False


def plan_download_offline(base: PublishedBase, folder: Path, *, optional: bool) -> list[DownloadItem]:
    """The list by heart, without a network: sizes are about right."""
    chosen = [file for file in base.files if file.needed or optional]
    return [
        DownloadItem(file, file.name, file.place, file.about_bytes, there=_is_present(folder / file.place))
        for file in chosen
    ]


def list_published_files(base: PublishedBase, folder: Path, *, optional: bool) -> list[DownloadItem]:
    """The same as the hub has it, with sizes and hashes; folders file by file."""
    chosen = [file for file in base.files if file.needed or optional]
    listings = {
        one: {entry.name: entry for entry in list_hub_files(one)} for one in dict.fromkeys(f.repository for f in chosen)
    }
    return [wanted for file in chosen for wanted in _items_from_listing(file, listings[file.repository], folder)]


def download_missing_files(wanted: Iterable[DownloadItem], folder: Path) -> dict[str, str]:
    """Fetch what is not there; SHA-256 by place, of all of them."""
    wanted = list(wanted)
    missing = [one for one in wanted if not one.there]
    _require_download_space(folder, sum(one.num_bytes for one in missing))
    hashes: dict[str, str] = {}
    with progress.progress_task("fetching", sum(one.num_bytes for one in missing)) as advance:
        for one in wanted:
            if one.there:
                hashes[one.place] = _verify_hash(one, folder / one.place)
                continue
            hashes[one.place] = _download_item(one, folder)
            advance(one.num_bytes)
    shutil.rmtree(folder / PARTIAL_FOLDER_NAME, ignore_errors=True)
    return hashes


def _items_from_listing(file: PublishedFile, listing: Mapping[str, HubFile], folder: Path) -> list[DownloadItem]:
    names = [name for name in listing if name.startswith(file.name)] if file.is_folder else [file.name]
    if not names or any(name not in listing for name in names):
        found = f"{file.repository} has no {file.name}"
        raise FileError("download-missing", found, expected=file.what)
    found_files = []
    for name in names:
        entry = listing[name]
        place = file.place + name.removeprefix(file.name) if file.is_folder else file.place
        there = is_file(folder / place) and (folder / place).stat().st_size == entry.num_bytes
        found_files.append(DownloadItem(file, name, place, entry.num_bytes, entry.sha256, entry.git_id, there))
    return found_files


def _download_item(one: DownloadItem, folder: Path) -> str:
    """Into its place once it is known to be the right one; a wrong one is removed, so that the next call fetches it."""
    target = folder / one.place
    parts = folder / PARTIAL_FOLDER_NAME / one.file.repository.replace("/", "--")
    fetched = download_hub_file(one.file.repository, one.name, parts)
    try:
        digest = _verify_hash(one, fetched)
    except FileError:
        fetched.unlink(missing_ok=True)
        raise
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(fetched, target)
    except OSError as error:
        raise build_write_error(error, target) from None
    return digest


def _verify_hash(one: DownloadItem, path: Path) -> str:
    actual = compute_sha256(path)
    stated, found = one.sha256, actual
    if stated is None and one.git_id is not None:
        stated, found = one.git_id, _compute_git_id(path)
    if stated is not None and found != stated:
        kind = "sha256" if one.sha256 else "git id"
        expected = f"{stated[:12]}, as {one.file.repository} has it"
        raise FileError("download-hash", f"{one.place} has {kind} {found[:12]}", expected=expected, where=path)
    return actual


def _compute_git_id(path: Path) -> str:
    """What git calls a file of these bytes."""
    data = read_bytes(path, MAX_GIT_FILE_BYTES)
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _require_download_space(folder: Path, num_bytes: int) -> None:
    free = free_disk_bytes(folder)
    if free is not None and free < num_bytes + DOWNLOAD_SLACK_BYTES:
        raise FileError("disk-too-small", f"{num_bytes:,} bytes are to come, {free:,} are free", where=folder)


def _is_present(path: Path) -> bool:
    return is_file(path) or (is_folder(path) and any(path.iterdir()))
