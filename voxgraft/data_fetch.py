"""The verb `data fetch`: media and captions by address, thinly: single files as they are, all else through yt-dlp.

You need the right to use what you fetch; captions that a machine has written are only taken if asked for.
"""

from __future__ import annotations

import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxgraft import progress
from voxgraft.data_settings import DataFetchSettings
from voxgraft.errors import ConfigError, FileError, VoxgraftError
from voxgraft.files import is_file, read_lines, reason_of, replacing
from voxgraft.importing.media import MEDIA_ENDINGS
from voxgraft.importing.subtitles import SUBTITLE_ENDINGS
from voxgraft.results import Line, Shown

__all__ = ["data_fetch", "fetch_options"]

SECONDS = 60
_UNSAFE = re.compile(r"[^\w.\-]+")
_WEB = ("http", "https")


def data_fetch(settings: DataFetchSettings) -> Shown:
    """Fetch every address into one folder; a second time only what is missing."""
    lines = [*settings.addresses]
    if settings.list is not None:
        lines += [line for _, line in read_lines(settings.list) if not line.startswith("#")]
    if not lines:
        raise ConfigError("config-missing", "there is no address to fetch", cure="give addresses, or --list FILE.")
    settings.folder.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    others: list[str] = []
    with progress.task("fetching", len(lines)) as advance:
        for line in lines:
            addresses = line.split()
            if all(_is_file(address) for address in addresses):
                failures += _fetch_files(addresses, settings.folder)
            else:
                others += addresses
            advance(1)
    failed = len(failures) + (_fetch_pages(others, settings) if others else 0)
    there = sorted(path.name for path in settings.folder.iterdir() if path.is_file() and path.name[0] != ".")
    told: list[Line] = [*failures, f"{len(there):,} files in {settings.folder}"]
    told.append(f"next: voxgraft data import DATASET {settings.folder} --language {settings.language}")
    return Shown({"folder": str(settings.folder), "files": there, "failed": failed}, tuple(told), min(1, failed))


def _is_file(address: str) -> bool:
    """Whether an address names one media or subtitle file, by how it ends."""
    parts = urllib.parse.urlsplit(address)
    return parts.scheme in _WEB and Path(parts.path).suffix.lower() in (*MEDIA_ENDINGS, *SUBTITLE_ENDINGS)


def _fetch_files(addresses: Sequence[str], folder: Path) -> list[str]:
    """Files that belong together, all under the name of the first; gives what failed, in words."""
    stem = _UNSAFE.sub("_", urllib.parse.unquote(Path(urllib.parse.urlsplit(addresses[0]).path).stem)) or "media"
    failed = []
    for address in addresses:
        target = folder / (stem + Path(urllib.parse.urlsplit(address).path).suffix.lower())
        if is_file(target):
            continue
        try:
            with urllib.request.urlopen(address, timeout=SECONDS) as source, replacing(target) as stream:  # noqa: S310 (only web addresses come here)
                shutil.copyfileobj(source, stream)
        except (urllib.error.URLError, VoxgraftError, ValueError) as error:
            failed.append(f"{address}: {reason_of(error)}")
    return failed


def _fetch_pages(addresses: Sequence[str], settings: DataFetchSettings) -> int:
    """Through yt-dlp, which knows pages and lists; gives the number of those that failed."""
    try:
        import yt_dlp
    except ImportError:
        cure = "pip install 'voxgraft[fetch]'; addresses of single files (.mp3, .mp4, .srt ...) need nothing."
        raise ConfigError("extra-missing", f"fetching {addresses[0]} needs yt-dlp", cure=cure) from None
    try:
        with yt_dlp.YoutubeDL(fetch_options(settings)) as fetcher:
            return int(fetcher.download(addresses))
    except yt_dlp.utils.YoutubeDLError as error:
        raise FileError("fetch-failed", reason_of(error), where=settings.folder) from None


def fetch_options(settings: DataFetchSettings) -> dict[str, Any]:
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
