"""Which files the browser may name: those inside the allowed folders, by their real place. Reads no file's contents."""

from __future__ import annotations

import contextlib
import html
import os
import re
import shutil
import time
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.responses import FileResponse, PlainTextResponse, Response

from voxgraft.core.errors import FileError, VoxgraftError
from voxgraft.core.files import format_error_reason, free_disk_bytes, parse_json, read_lines, text_lines
from voxgraft.core.run import RUN_FILE
from voxgraft.data.sources import TABLE_SUFFIXES
from voxgraft.data.subtitles import read_encoded_text
from voxgraft.data.tables import (
    COLUMN_ALIASES,
    COLUMNAR_SUFFIXES,
    TranscriptRow,
    find_audio_file,
    read_arrow_audio_names,
    read_transcript_list,
)

MAX_CHOICES = 400
"""A list that nobody can read through is no help; typing the path still works."""
MAX_FOLDERS = 5000
MAX_DEPTH = 4
WALK_CACHE_SECONDS = 1.0
SKIPPED_FOLDERS = ("steps", "samples", "tensorboard", "jobs", "node_modules", "__pycache__", "shards", "preparing")
"""Folders in which nobody chooses a file."""
MAX_UPLOAD_NAME_BYTES = 120


@dataclass(frozen=True, slots=True)
class PathFilter:
    """What a list of paths is made of: folders that hold `mark`, or files that end with one of `endings`."""

    endings: tuple[str, ...] = ()
    mark: str = ""
    folders: bool = False
    """Any folder."""


PROJECT_PATHS = PathFilter(mark=RUN_FILE)
DATASET_PATHS = PathFilter(mark="manifest.jsonl")
TEXT_PATHS = PathFilter(endings=(".txt", ".jsonl"))
FOLDER_PATHS = PathFilter(folders=True)


@dataclass(frozen=True, slots=True)
class Roots:
    """The allowed folders, as real paths. The first is where commands run, and where short names start."""

    paths: tuple[Path, ...]

    @classmethod
    def of(cls, given: tuple[Path, ...]) -> Roots:
        """The folders that were named, each of which must be there."""
        for path in given:
            if not path.is_dir():
                raise FileError("file-missing", f"the folder {path} is not there", where=path)
        return cls(tuple(path.resolve() for path in given))

    @property
    def home(self) -> Path:
        return self.paths[0]

    def resolve_inside(self, text: str | Path) -> Path:
        """The real path of what was typed, if it is inside; links are followed before it is judged."""
        given = str(text)
        if not given or "\0" in given or len(given) > 4096:
            raise FileError("ui-outside", f"{given[:60]!r} is no path")
        try:
            real = (self.home / given).resolve()
        except (OSError, RuntimeError, ValueError):
            raise FileError("ui-outside", f"{given[:200]!r} leads nowhere") from None
        if not any(real == root or root in real.parents for root in self.paths):
            roots = ", ".join(map(str, self.paths))
            raise FileError("ui-outside", f"{given[:200]!r} is outside the folders that are open here", expected=roots)
        return real

    def short(self, path: Path) -> str:
        """A path as a command names it: from the first folder where it lies in there; never like a flag."""
        if path == self.home or self.home in path.parents:
            text = str(path.relative_to(self.home))
            return f"./{text}" if text.startswith("-") else text
        return str(path)

    def parts(self, path: Path) -> tuple[str, ...]:
        """The names on the way from a root to a path inside it."""
        root = next((root for root in self.paths if root == path or root in path.parents), None)
        return path.relative_to(root).parts if root is not None else path.parts

    def find(self, sought: PathFilter, first: Path | None = None) -> list[str]:
        """Short names of what fits, those inside `first` on top."""
        starts = [first] if first is not None else []
        found: dict[str, None] = {}
        for start in (*starts, *self.paths):
            for path in _find_matching_paths(start, sought):
                found[self.short(path)] = None
                if len(found) >= MAX_CHOICES:
                    return list(found)
        return list(found)


def safe_name(name: str) -> str:
    """A name for an uploaded file: its letters (of any script), digits, dots and dashes; never hidden, never a path."""
    last = unicodedata.normalize("NFC", name.replace("\\", "/").rpartition("/")[2])
    plain = re.sub(r"[^\w.\-]+", "_", last).lstrip(".-_")
    stem, dot, ending = plain.rpartition(".")
    if not dot:
        stem, ending = plain, ""
    room = MAX_UPLOAD_NAME_BYTES - len(ending.encode()) - 1
    stem = stem.encode()[: max(room, 8)].decode(errors="ignore")
    return f"{stem or 'file'}{dot}{ending[:16]}"


def _find_matching_paths(start: Path, sought: PathFilter) -> Iterator[Path]:
    # A page asks for a dozen lists at once: what was seen a moment ago serves all of them.
    for here, files in _list_folders_cached(start, int(time.monotonic() / WALK_CACHE_SECONDS)):
        if (sought.mark and sought.mark in files) or (sought.folders and here != start):
            yield here
        for name in files:
            if sought.endings and name.lower().endswith(sought.endings) and not name.startswith("."):
                path = here / name
                if path.is_file() and not path.is_symlink():
                    yield path


@lru_cache(maxsize=16)
def _list_folders_cached(start: Path, _moment: int) -> list[tuple[Path, list[str]]]:
    found = []
    for folder, folders, files in os.walk(start):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS)
        if len(here.relative_to(start).parts) >= MAX_DEPTH:
            folders.clear()
        found.append((here, sorted(files)))
        if len(found) >= MAX_FOLDERS:
            break
    return found


UPLOADS_FOLDER = "uploads"
LIST_ENDINGS = (*TABLE_SUFFIXES, "metadata.txt")
RESERVED_DISK_BYTES = 256 << 20
"""What is left free on the disk."""


def move_uploads(roots: Roots, project: Path, files: Sequence[str]) -> list[Path]:
    """Move uploaded files into the project's own folder, all or none; where each has come to."""
    landing = Path(os.environ.get("GRADIO_TEMP_DIR", "")).resolve()
    folder, sources = project / UPLOADS_FOLDER, [Path(name) for name in files]
    for source in sources:
        if landing not in source.resolve().parents or not source.is_file():
            raise FileError("ui-upload", f"{source.name} was not uploaded here")
        _refuse_paths_outside(roots, source, folder)
    room = free_disk_bytes(project)
    if room is not None and room - sum(source.stat().st_size for source in sources) < RESERVED_DISK_BYTES:
        raise FileError("disk-full", f"no room for {', '.join(source.name for source in sources)}", where=folder)
    return [_move_upload(source, folder) for source in sources]


def check_uploaded_lists(roots: Roots, places: Sequence[str], encoding: str) -> None:
    """Judge uploaded lists once more that are to be read in an encoding, in which they may name other sounds."""
    for place in (roots.home / name for name in places):
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if UPLOADS_FOLDER in roots.parts(path.parent) and path.is_file():
                _refuse_paths_outside(roots, path, path.parent, encoding)


def _refuse_paths_outside(roots: Roots, source: Path, folder: Path, encoding: str | None = None) -> None:
    """A list that came through the browser may name files inside the roots only, as the browser itself may."""
    # Sounds of a list are sought from its folder, voices of a table for speaking from where commands run.
    sounds = (
        (name, _resolve_audio_path(folder, name))
        for name in _audio_names_in(source, encoding)
        if _may_leave_folder(name)
    )
    voices = (
        (name, roots.home / name.replace("\\", "/")) for name in _voice_names_in(source) if _may_leave_folder(name)
    )
    for name, path in (*sounds, *voices):
        try:
            roots.resolve_inside(path)
        except FileError:
            found = f"{source.name} names {name!r:.100}, outside the folders that are open here"
            raise FileError("ui-upload", found, cure="name files inside them, or upload them too.") from None


def _resolve_audio_path(folder: Path, name: str) -> Path:
    return find_audio_file(folder, name) or folder / name.replace("\\", "/")


def _may_leave_folder(name: str) -> bool:
    """Whether a name may lead elsewhere than below the folder that it is sought in."""
    return ".." in name or name.startswith(("/", "\\"))


def _audio_names_in(source: Path, encoding: str | None) -> Iterator[str]:
    """Every file that a list names; none where it cannot be read, which its import will say."""
    name = safe_name(source.name).lower()
    with contextlib.suppress(VoxgraftError):
        if name.endswith(COLUMNAR_SUFFIXES):
            yield from read_arrow_audio_names(source)
        elif name.endswith(LIST_ENDINGS):
            yield from (row.audio for row in read_transcript_list(source, encoding) if isinstance(row, TranscriptRow))
    yield from _json_paths_in(source)


def _json_paths_in(source: Path) -> Iterator[str]:
    """Every path in lines of JSON, whatever the file is called: of clips, and of codes of other trainers' pairs."""
    with contextlib.suppress(VoxgraftError):
        for _, line in read_lines(source):
            with contextlib.suppress(VoxgraftError):
                values = parse_json(line, source.name) if line.startswith("{") else None
                pairs = values.items() if isinstance(values, dict) else ()
                yield from (value for key, value in pairs if isinstance(value, str) and _is_path_key(key.lower()))


def _is_path_key(key: str) -> bool:
    return key.endswith("_path") or key in COLUMN_ALIASES["audio"]


def _voice_names_in(source: Path) -> Iterator[str]:
    """Every voice that a table for speaking names."""
    if not safe_name(source.name).lower().endswith(".tsv"):
        return
    with contextlib.suppress(VoxgraftError):
        rows = [line.split("\t") for line in text_lines(read_encoded_text(source)) if line.strip()]
        at = rows[0].index("voice") if rows and "voice" in rows[0] else None
        yield from (cells[at].strip() for cells in rows[1:] if at is not None and at < len(cells))


def _move_upload(source: Path, folder: Path) -> Path:
    try:
        folder.mkdir(exist_ok=True)
        if folder.is_symlink() or folder.resolve().parent != folder.parent.resolve():
            raise FileError("ui-upload", f"{folder.name} is a link", where=folder)
        target = _next_free_upload_path(folder / _protect_run_yaml_name(safe_name(source.name)))
        shutil.move(source, target)
        target.chmod(0o644)
    except OSError as error:
        raise FileError("ui-upload", f"{source.name}: {format_error_reason(error)}", where=folder) from None
    return target


def _protect_run_yaml_name(name: str) -> str:
    """Settings that somebody brings are a text like others: no folder becomes a project by an upload."""
    return f"uploaded-{name}" if name.lower() == RUN_FILE else name


def _next_free_upload_path(path: Path) -> Path:
    """The path, or the next one with a number that is not there: nothing is written over."""
    number, tried = 1, path
    while os.path.lexists(tried):
        number += 1
        tried = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return tried


MIME_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".zip": "application/zip",
}
SANDBOX_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src 'self' data:; media-src 'self' data:; font-src data:; "
    "frame-ancestors 'none'"
)


def add_file_routes(app: FastAPI, roots: Roots, prefix: str) -> None:
    """Serve files of the kinds above under `prefix`, which ends with the secret."""

    @app.get(prefix + "/{path:path}", include_in_schema=False)
    def page(path: str) -> Response:
        try:
            found = roots.resolve_inside(path)
        except VoxgraftError:
            return PlainTextResponse("not here\n", 404)
        kind = MIME_TYPES.get(found.suffix.lower())
        if kind is None or not found.is_file():
            return PlainTextResponse("not here\n", 404)
        headers = {
            "content-security-policy": SANDBOX_POLICY,
            "cross-origin-resource-policy": "cross-origin",
            "cache-control": "no-store",
        }
        return FileResponse(found, media_type=kind, headers=headers)


def file_url(prefix: str, roots: Roots, path: Path) -> str:
    """The address of a file inside the roots."""
    return f"{prefix}/{quote(roots.short(path))}"


def file_link(prefix: str, roots: Roots, path: Path, words: str) -> str:
    """A link to a file that opens in a window of its own; nothing where the file is not there."""
    if not path.is_file():
        return ""
    address = html.escape(file_url(prefix, roots, path), quote=True)
    return f'<a class="vg-link" href="{address}" target="_blank" rel="noopener">{html.escape(words)}</a>'
