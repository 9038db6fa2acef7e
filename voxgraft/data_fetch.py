"""The verb `data fetch`: media and captions by address, through yt-dlp, thinly wrapped.

You need the right to use what you fetch; captions that a machine has written are only taken if asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxgraft.data_sets import Shown
from voxgraft.data_settings import DataFetchSettings
from voxgraft.errors import ConfigError, FileError
from voxgraft.files import read_lines, reason_of

__all__ = ["data_fetch", "fetch_options"]


def data_fetch(settings: DataFetchSettings) -> Shown:
    """Fetch every address into one folder; a second time only what is missing."""
    addresses = [*settings.addresses]
    if settings.list is not None:
        addresses += [line for _, line in read_lines(settings.list) if not line.startswith("#")]
    if not addresses:
        raise ConfigError("config-missing", "there is no address to fetch", cure="give addresses, or --list FILE.")
    try:
        import yt_dlp
    except ImportError:
        cure = "pip install 'voxgraft[fetch]'"
        raise ConfigError("extra-missing", "fetching needs yt-dlp", cure=cure) from None
    settings.folder.mkdir(parents=True, exist_ok=True)
    try:
        with yt_dlp.YoutubeDL(fetch_options(settings)) as fetcher:
            failed = int(fetcher.download(addresses))
    except yt_dlp.utils.YoutubeDLError as error:
        raise FileError("fetch-failed", reason_of(error), where=settings.folder) from None
    there = sorted(path.name for path in settings.folder.iterdir() if path.is_file())
    told = f"{len(there):,} files in {settings.folder}; next: voxgraft data import DATASET {settings.folder}"
    return Shown({"folder": str(settings.folder), "files": there, "failed": failed}, (told,), min(1, failed))


def fetch_options(settings: DataFetchSettings) -> dict[str, Any]:
    """What yt-dlp is told."""
    return {
        "format": "bestaudio/best",
        "outtmpl": str(Path(settings.folder) / "%(title).80B-%(id)s.%(ext)s"),
        "writesubtitles": True,
        "writeautomaticsub": settings.automatic,
        "subtitleslangs": [settings.language, f"{settings.language}-.*"],
        "subtitlesformat": "vtt/srt/best",
        "download_archive": str(Path(settings.folder) / ".fetched.txt"),
        "ignoreerrors": True,
        "quiet": True,
        "noprogress": True,
    }
