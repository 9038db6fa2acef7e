"""The verb `download`: a published base into a folder; without a network, what to put where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.downloading.catalogue import PUBLISHED_BASES, PublishedBase
from voxgraft.downloading.fetching import (
    DownloadItem,
    download_missing_files,
    list_published_files,
    plan_download_offline,
)
from voxgraft.errors import FileError, Finding
from voxgraft.exchange_settings import DownloadSettings
from voxgraft.families import get_family
from voxgraft.files import free_disk_bytes, write_json
from voxgraft.results import Line, Table, style_line

__all__ = ["DownloadResult", "download"]

DOWNLOAD_CARD_NAME = "download.json"
DOWNLOAD_FORMAT = "voxgraft-download-1"


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """What the base is made of, and whether it is there."""

    base: PublishedBase
    folder: Path
    wanted: tuple[DownloadItem, ...]
    hashes: dict[str, str]
    free_bytes: int | None
    problem: Finding | None = None
    listed: bool = False

    @property
    def exit_code(self) -> int:
        return 1 if self.problem and not self.complete else 0

    @property
    def complete(self) -> bool:
        """Whether every file is there, come as it may."""
        return all(one.there or one.place in self.hashes for one in self.wanted)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.base.title,
            "family": self.base.family,
            "licence": self.base.licence,
            "folder": str(self.folder),
            "free_bytes": self.free_bytes,
            "files": [
                {
                    "repository": one.file.repository,
                    "name": one.name,
                    "place": one.place,
                    "bytes": one.num_bytes,
                    "sha256": self.hashes.get(one.place) or one.sha256,
                    "there": one.there or one.place in self.hashes,
                    "what": one.file.what,
                }
                for one in self.wanted
            ],
            "problem": self.problem.to_json() if self.problem else None,
        }

    def lines(self) -> list[Line]:
        rows = tuple(
            (
                one.place,
                _format_file_size(one.num_bytes),
                "there" if one.there or one.place in self.hashes else "missing",
                one.file.repository,
                one.file.what,
            )
            for one in self.wanted
        )
        lines: list[Line] = [style_line((self.base.title, "bold")), f"licence: {self.base.licence}"]
        lines.append(Table(("file in the folder", "size", "", "from", "what"), rows))
        free = f"; {_format_file_size(self.free_bytes)} are free" if self.free_bytes is not None else ""
        lines.append(f"{_format_file_size(sum(one.num_bytes for one in self.wanted))} in all{free}")
        if self.problem is not None and self.complete:
            lines += self.problem.lines()
            return [*lines, f"all there by their names, and held against no hash: {self.folder}"]
        if self.problem is not None:
            missing = [one for one in self.wanted if not one.there]
            lines += self.problem.lines()
            these = "this file" if len(missing) == 1 else f"these {len(missing)} files"
            lines.append(f"Put {these} into {self.folder} by hand, under the names above:")
            lines += [f"  https://huggingface.co/{one.file.repository}  {one.name}  ->  {one.place}" for one in missing]
            return lines
        done = "listed only" if self.listed else "all there, with the hashes in download.json"
        return [*lines, f"{done}: {self.folder}"]


def download(settings: DownloadSettings) -> DownloadResult:
    """Fetch a base, or say what it is made of."""
    base = PUBLISHED_BASES[settings.name]
    folder = settings.folder or Path("models") / settings.name
    free = free_disk_bytes(folder)
    if settings.list_only:
        wanted = plan_download_offline(base, folder, optional=settings.optional)
        return DownloadResult(base, folder, tuple(wanted), {}, free, listed=True)
    try:
        wanted = list_published_files(base, folder, optional=settings.optional)
    except FileError as error:
        if error.code not in ("hub-missing", "hub-unreachable"):
            raise
        plan = plan_download_offline(base, folder, optional=settings.optional)
        return DownloadResult(base, folder, tuple(plan), {}, free, error.finding)
    hashes = download_missing_files(wanted, folder)
    get_family(base.family).files(folder)
    card = {"format": DOWNLOAD_FORMAT, "title": base.title, "licence": base.licence, "files": hashes}
    write_json(folder / DOWNLOAD_CARD_NAME, card, overwrite=True)
    return DownloadResult(base, folder, tuple(wanted), hashes, free)


def _format_file_size(num_bytes: int) -> str:
    if num_bytes >= 1e8:
        return f"{num_bytes / 1e9:,.2f} GB"
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:,.1f} kB"
