"""The verb `data fetch`: media and captions by address, thinly: single files as they are, all else through yt-dlp.

You need the right to use what you fetch; captions that a machine has written are only taken if asked for.
"""

from __future__ import annotations

import http.client
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxgraft.audio.files import MEDIA_SUFFIXES
from voxgraft.config.data import DataFetchSettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, FileError, VoxgraftError
from voxgraft.core.files import (
    atomic_write,
    build_write_error,
    format_error_reason,
    is_file,
    read_json,
    read_lines,
    write_json,
)
from voxgraft.core.results import Line, SimpleResult
from voxgraft.data.subtitles import SUBTITLE_SUFFIXES

__all__ = ["build_ytdlp_options", "data_fetch"]

FETCH_TIMEOUT_SECONDS = 60
FETCHED_NAMES_FILE = ".fetched-files.json"
"""Which address each file came from: two addresses may end in the same name."""
_UNSAFE_CHARACTERS = re.compile(r"[^\w.\-]+")
_WEB_SCHEMES = ("http", "https")


def data_fetch(settings: DataFetchSettings) -> SimpleResult:
    """Fetch every address into one folder; a second time only what is missing."""
    lines = [*settings.addresses]
    if settings.list is not None:
        lines += [line for _, line in read_lines(settings.list) if not line.startswith("#")]
    if not lines:
        raise ConfigError("config-missing", "there is no address to fetch", cure="give addresses, or --list FILE.")
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise build_write_error(error, settings.folder) from None
    failures: list[str] = []
    others: list[str] = []
    with progress.progress_task("fetching", len(lines)) as advance:
        for line in lines:
            addresses = line.split()
            if all(_is_media_url(address) for address in addresses):
                failures += _fetch_files(addresses, settings.folder)
            else:
                others += addresses
            advance(1)
    failed = len(failures) + (_fetch_pages(others, settings) if others else 0)
    there = sorted(path.name for path in settings.folder.iterdir() if path.is_file() and path.name[0] != ".")
    told: list[Line] = [*failures, f"{len(there):,} files in {settings.folder}"]
    told.append(f"next: voxgraft data import DATASET {settings.folder} --language {settings.language}")
    return SimpleResult({"folder": str(settings.folder), "files": there, "failed": failed}, tuple(told), min(1, failed))


def _is_media_url(address: str) -> bool:
    """Whether an address names one media or subtitle file, by how it ends."""
    parts = urllib.parse.urlsplit(address)
    return parts.scheme in _WEB_SCHEMES and Path(parts.path).suffix.lower() in (*MEDIA_SUFFIXES, *SUBTITLE_SUFFIXES)


def _fetch_files(addresses: Sequence[str], folder: Path) -> list[str]:
    """Files that belong together, all under the name of the first; gives what failed, in words."""
    endings = [Path(urllib.parse.urlsplit(address).path).suffix.lower() for address in addresses]
    if len(set(endings)) < len(endings):  # two recordings on a line are no pair
        return [failed for address in addresses for failed in _fetch_files([address], folder)]
    came_from = _read_fetched_names(folder)
    stem = _choose_free_stem(addresses, endings, came_from)
    failed = []
    for address, ending in zip(addresses, endings, strict=True):
        target = folder / (stem + ending)
        if not is_file(target):
            try:
                _fetch_file(address, target)
            except (OSError, http.client.HTTPException, VoxgraftError, ValueError) as error:
                failed.append(f"{address}: {format_error_reason(error)}")
                continue
        came_from[target.name] = address
    write_json(folder / FETCHED_NAMES_FILE, came_from, overwrite=True)
    return failed


def _read_fetched_names(folder: Path) -> dict[str, str]:
    """Addresses by file name; a file that is not here was brought by somebody else, and counts as fetched."""
    try:
        known = read_json(folder / FETCHED_NAMES_FILE) if is_file(folder / FETCHED_NAMES_FILE) else {}
    except VoxgraftError:
        known = {}
    return {str(name): str(address) for name, address in known.items()} if isinstance(known, dict) else {}


def _choose_free_stem(addresses: Sequence[str], endings: Sequence[str], came_from: dict[str, str]) -> str:
    """The name of the first, with a number behind it where files of other addresses have it."""
    name = (
        _UNSAFE_CHARACTERS.sub("_", urllib.parse.unquote(Path(urllib.parse.urlsplit(addresses[0]).path).stem))
        or "media"
    )
    stem, number = name, 2
    pairs = list(zip(addresses, endings, strict=True))
    while any(came_from.get(stem + ending, address) != address for address, ending in pairs):
        stem, number = f"{name}-{number}", number + 1
    return stem


def _fetch_file(address: str, target: Path) -> None:
    """One file, whole or not at all: a connection that ends early looks like the end of the file."""
    with urllib.request.urlopen(address, timeout=FETCH_TIMEOUT_SECONDS) as source, atomic_write(target) as stream:  # noqa: S310 (only web addresses come here)
        shutil.copyfileobj(source, stream)
        expected = source.headers.get("Content-Length")
        if expected is not None and expected.isdigit() and stream.tell() != int(expected):
            found = f"{stream.tell():,} of {int(expected):,} bytes came"
            raise FileError("fetch-failed", found, where=address)


def _fetch_pages(addresses: Sequence[str], settings: DataFetchSettings) -> int:
    """Through yt-dlp, which knows pages and lists; gives the number of those that failed."""
    try:
        import yt_dlp
    except ImportError:
        cure = "pip install 'voxgraft[fetch]'; addresses of single files (.mp3, .mp4, .srt ...) need nothing."
        raise ConfigError("extra-missing", f"fetching {addresses[0]} needs yt-dlp", cure=cure) from None
    try:
        with yt_dlp.YoutubeDL(build_ytdlp_options(settings)) as fetcher:
            return int(fetcher.download(addresses))
    except yt_dlp.utils.YoutubeDLError as error:
        raise FileError("fetch-failed", format_error_reason(error), where=settings.folder) from None


def build_ytdlp_options(settings: DataFetchSettings) -> dict[str, Any]:
    """What yt-dlp is told."""
    return {
        "format": "bestaudio/best",
        "outtmpl": str(settings.folder / "%(title).80B-%(id)s.%(ext)s"),
        "writesubtitles": True,
        "writeautomaticsub": settings.automatic,
        "subtitleslangs": [settings.language, f"{settings.language}-.*"],
        "subtitlesformat": "vtt/srt/best",
        "download_archive": str(settings.folder / ".fetched.txt"),
        "ignoreerrors": True,
        "quiet": True,
        "noprogress": True,
        "no_warnings": True,
    }
