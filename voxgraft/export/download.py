"""The command `download`: published bases, which files each has and from where, and fetching them into one folder.

Every file is verified by the hub's own hash before it gets its name; an interrupted download is continued.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.config.commands import DownloadSettings
from voxgraft.core import progress
from voxgraft.core.errors import FileError, Finding
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import (
    build_write_error,
    compute_sha256,
    free_disk_bytes,
    is_file,
    is_folder,
    read_bytes,
    require_disk_space,
    write_json,
)
from voxgraft.core.results import Line, Table, format_bytes, style_line
from voxgraft.export.share import download_hub_file, list_hub_files
from voxgraft.models import get_family


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One file: its repository and name there, its place in the base folder, and what it is for."""

    repository: str
    name: str
    what: str
    about_bytes: int
    prefix: str = ""
    """Folder in the base folder, with its slash."""
    needed: bool = True
    """Others are fetched with --optional only."""
    is_folder: bool = False
    """All files of the repository below that name."""

    @property
    def place(self) -> str:
        return self.prefix + self.name


@dataclass(frozen=True, slots=True)
class PublishedBase:
    """One base as its makers publish it."""

    title: str
    family: str
    licence: str
    files: tuple[PublishedFile, ...]


PUBLISHED_BASES = {
    name: PublishedBase(
        entry["title"],
        facts.name,
        entry["licence"],
        tuple(PublishedFile(**{"repository": entry["repository"], **file}) for file in entry["files"]),
    )
    for facts in FAMILIES.values()
    for name, entry in facts.downloads.items()
}
# In the base folder while files are fetched; an interrupted download resumes from what is in it.
PARTIAL_FOLDER_NAME = ".download"
DOWNLOAD_SLACK_BYTES = 256 << 20
# A hub keeps larger files outside git, and states their SHA-256.
MAX_GIT_FILE_BYTES = 256 << 20
DOWNLOAD_CARD_NAME = "download.json"
DOWNLOAD_FORMAT = "voxgraft-download-1"


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """What the base is made of, and whether it exists."""

    base: PublishedBase
    folder: Path
    files: list[dict[str, Any]]
    """Each with repository, name, place, bytes, sha256, there and what."""
    free_bytes: int | None
    problem: Finding | None = None
    listed: bool = False

    @property
    def exit_code(self) -> int:
        return 1 if self.problem and not all(one["there"] for one in self.files) else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.base.title,
            "family": self.base.family,
            "licence": self.base.licence,
            "folder": str(self.folder),
            "free_bytes": self.free_bytes,
            "files": self.files,
            "problem": self.problem.to_json() if self.problem else None,
        }

    def lines(self) -> list[Line]:
        rows = []
        for one in self.files:
            there = "there" if one["there"] else "missing"
            rows.append((one["place"], format_bytes(one["bytes"]), there, one["repository"], one["what"]))
        lines: list[Line] = [style_line((self.base.title, "bold")), f"licence: {self.base.licence}"]
        lines.append(Table(("file in the folder", "size", "", "from", "what"), tuple(rows)))
        free = f"; {format_bytes(self.free_bytes)} free" if self.free_bytes is not None else ""
        lines.append(f"{format_bytes(sum(one['bytes'] for one in self.files))} in total{free}")
        if self.problem is not None:
            missing = [one for one in self.files if not one["there"]]
            lines += self.problem.lines()
            if not missing:
                return [*lines, f"all files exist; their hashes were not checked: {self.folder}"]
            these = "this file" if len(missing) == 1 else f"these {len(missing)} files"
            lines.append(f"Put {these} into {self.folder} by hand, under the names above:")
            for one in missing:
                lines.append(f"  https://huggingface.co/{one['repository']}  {one['name']}  ->  {one['place']}")
            return lines
        done = "listed only" if self.listed else "all files exist, with the hashes in download.json"
        return [*lines, f"{done}: {self.folder}"]


def download(settings: DownloadSettings) -> DownloadResult:
    """Fetch a base, or say what it is made of."""
    base = PUBLISHED_BASES[settings.name]
    folder = settings.folder or Path("models") / settings.name
    free = free_disk_bytes(folder)
    files = [file for file in base.files if file.needed or settings.optional]
    # The built-in list, for use without a network: its sizes are about right.
    planned = []
    for file in files:
        path = folder / file.place
        there = is_file(path) or (is_folder(path) and any(path.iterdir()))
        planned.append(_describe_file(file, file.name, file.place, file.about_bytes, there=there))
    if settings.list_only:
        return DownloadResult(base, folder, planned, free, listed=True)
    try:
        listings = {one: list_hub_files(one) for one in dict.fromkeys(file.repository for file in files)}
    except FileError as error:
        if error.code not in ("hub-missing", "hub-unreachable"):
            raise
        return DownloadResult(base, folder, planned, free, error.finding)
    # The files as the hub has them, folders file by file; with the git id of those that have no SHA-256 there.
    wanted = []
    for file in files:
        listing = listings[file.repository]
        names = [name for name in listing if name.startswith(file.name)] if file.is_folder else [file.name]
        if not names or any(name not in listing for name in names):
            raise FileError("download-missing", f"{file.repository} has no {file.name}", expected=file.what)
        for name in names:
            num_bytes, sha256, git_id = listing[name]
            place = file.place + name.removeprefix(file.name) if file.is_folder else file.place
            there = is_file(folder / place) and (folder / place).stat().st_size == num_bytes
            wanted.append((_describe_file(file, name, place, num_bytes, sha256, there=there), git_id))
    hashes = _download_missing_files(wanted, folder)
    get_family(base.family).files(folder)  # raises if the folder is not a whole base now
    card = {"format": DOWNLOAD_FORMAT, "title": base.title, "licence": base.licence, "files": hashes}
    write_json(folder / DOWNLOAD_CARD_NAME, card, overwrite=True)
    described = [{**one, "sha256": hashes[one["place"]], "there": True} for one, _ in wanted]
    return DownloadResult(base, folder, described, free)


def _describe_file(
    file: PublishedFile, name: str, place: str, num_bytes: int, sha256: str | None = None, *, there: bool
) -> dict[str, Any]:
    found = {"repository": file.repository, "name": name, "place": place, "bytes": num_bytes, "sha256": sha256}
    return {**found, "there": there, "what": file.what}


def _download_missing_files(wanted: Sequence[tuple[dict[str, Any], str | None]], folder: Path) -> dict[str, str]:
    """Fetch what is missing; SHA-256 of all files by place."""
    total = sum(one["bytes"] for one, _ in wanted if not one["there"])
    require_disk_space(folder, total, "the download", slack=DOWNLOAD_SLACK_BYTES)
    hashes: dict[str, str] = {}
    with progress.progress_task("fetching", total) as advance:
        for one, git_id in wanted:
            target = folder / one["place"]
            if one["there"]:
                hashes[one["place"]] = _verify_hash(one, git_id, target)
                continue
            parts = folder / PARTIAL_FOLDER_NAME / one["repository"].replace("/", "--")
            fetched = download_hub_file(one["repository"], one["name"], parts)
            # A file gets its name only after it was verified; a wrong one is removed, so that the next call fetches it.
            try:
                hashes[one["place"]] = _verify_hash(one, git_id, fetched)
            except FileError:
                fetched.unlink(missing_ok=True)
                raise
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(fetched, target)
            except OSError as error:
                raise build_write_error(error, target) from None
            advance(one["bytes"])
    shutil.rmtree(folder / PARTIAL_FOLDER_NAME, ignore_errors=True)
    return hashes


def _verify_hash(one: dict[str, Any], git_id: str | None, path: Path) -> str:
    actual = compute_sha256(path)
    stated, found = one["sha256"], actual
    if stated is None and git_id is not None:
        # Git names a file by the SHA-1 of "blob SIZE\\0" and its bytes.
        data = read_bytes(path, MAX_GIT_FILE_BYTES)
        stated, found = git_id, hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if stated is not None and found != stated:
        kind = "sha256" if one["sha256"] else "git id"
        expected = f"{stated[:12]}, as in {one['repository']}"
        raise FileError("download-hash", f"{one['place']} has {kind} {found[:12]}", expected=expected, where=path)
    return actual
