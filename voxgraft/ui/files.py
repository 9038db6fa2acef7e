"""Files that the browser may name: those inside the allowed folders (roots), by their real place; and uploads.

Uploads are moved into the project's own folder, and lists among them are checked for paths outside the roots.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import time
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from voxgraft.core.errors import FileError, VoxgraftError
from voxgraft.core.files import format_error_reason, free_disk_bytes, parse_json, read_lines, text_lines
from voxgraft.core.run import RUN_FILE
from voxgraft.data.lists import (
    COLUMN_ALIASES,
    COLUMNAR_SUFFIXES,
    KALDI_AUDIO,
    TranscriptRow,
    find_audio_file,
    is_list_name,
    read_arrow_audio_names,
    read_kaldi_audio_names,
    read_transcript_list,
)
from voxgraft.data.subtitles import read_encoded_text
from voxgraft.ui.jobs import UPLOADS_FOLDER

# Longer lists help nobody; a path can still be typed.
MAX_CHOICES = 400
MAX_FOLDERS = 5000
MAX_DEPTH = 4
WALK_CACHE_SECONDS = 1.0
# Folders whose files are never offered.
SKIPPED_FOLDERS = ("steps", "samples", "tensorboard", "jobs", "node_modules", "__pycache__", "shards", "preparing")
MAX_UPLOAD_NAME_BYTES = 120
# Space that uploads leave free on the disk.
RESERVED_DISK_BYTES = 256 << 20


class PathFilter(NamedTuple):
    """Paths to offer: folders that contain the file `mark`, and files that end with one of `endings`."""

    endings: tuple[str, ...] = ()
    mark: str = ""
    folders: bool = False
    """Any folder."""


PROJECT_PATHS = PathFilter(mark=RUN_FILE)
DATASET_PATHS = PathFilter(mark="manifest.jsonl")
TEXT_PATHS = PathFilter(endings=(".txt", ".jsonl"))
FOLDER_PATHS = PathFilter(folders=True)
CHECKPOINT_PATHS = PathFilter(endings=(".safetensors", ".pt", ".pth"))
TOKENIZER_PATHS = PathFilter(endings=("tokenizer.json", ".model", "_expanded_v1.json"))
CONFIG_PATHS = PathFilter(endings=(".yaml", ".yml", ".sh", ".txt"))
ZIP_PATHS = PathFilter(endings=(".zip",))


@dataclass(frozen=True, slots=True)
class Roots:
    """The allowed folders, as real paths. The first is where commands run, and where short names start."""

    paths: tuple[Path, ...]

    @classmethod
    def of(cls, given: tuple[Path, ...]) -> Roots:
        """The named folders, each of which must exist."""
        for path in given:
            if not path.is_dir():
                raise FileError("file-missing", f"the folder {path} does not exist", where=path)
        return cls(tuple(path.resolve() for path in given))

    @property
    def home(self) -> Path:
        return self.paths[0]

    def resolve_inside(self, text: str | Path) -> Path:
        """The real path of what was typed, if it is inside the roots; links are followed before the check."""
        given = str(text)
        if not given or "\0" in given or len(given) > 4096:
            raise FileError("ui-outside", f"{given[:60]!r} is not a path")
        try:
            real = (self.home / given).resolve()
        except (OSError, RuntimeError, ValueError):
            raise FileError("ui-outside", f"{given[:200]!r} does not exist") from None
        if not any(real == root or root in real.parents for root in self.paths):
            roots = ", ".join(map(str, self.paths))
            raise FileError(
                "ui-outside", f"{given[:200]!r} is outside the folders that the web UI may read", expected=roots
            )
        return real

    def short(self, path: Path) -> str:
        """A path as commands name it: relative to the first root if it is inside; never like a flag."""
        if path == self.home or self.home in path.parents:
            text = str(path.relative_to(self.home))
            return f"./{text}" if text.startswith("-") else text
        return str(path)

    def parts(self, path: Path) -> tuple[str, ...]:
        """The path's parts below its root."""
        root = next((root for root in self.paths if root == path or root in path.parents), None)
        return path.relative_to(root).parts if root is not None else path.parts

    def find(self, sought: PathFilter, first: Path | None = None) -> list[str]:
        """Short names of matching paths, those inside `first` on top."""
        starts = [first] if first is not None else []
        found: dict[str, None] = {}
        for start in (*starts, *self.paths):
            # A page asks for a dozen lists at once: one walk per second serves all of them.
            for here, files in _list_folders_cached(start, int(time.monotonic() / WALK_CACHE_SECONDS)):
                matching = (
                    [here] if (sought.mark and sought.mark in files) or (sought.folders and here != start) else []
                )
                for name in files:
                    if sought.endings and name.lower().endswith(sought.endings) and not name.startswith("."):
                        path = here / name
                        matching += [path] if path.is_file() and not path.is_symlink() else []
                for path in matching:
                    found[self.short(path)] = None
                    if len(found) >= MAX_CHOICES:
                        return list(found)
        return list(found)


def file_stamp(path: Path) -> str:
    """Changes whenever the file (or the list of files of a folder) does; empty if there is none."""
    try:
        status = path.stat()
    except OSError:
        return ""
    # The inode too: a file replaced within the clock's resolution has the same time, and may have the same size.
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def modified_time(path: Path) -> float:
    """When a file was last written; 0 if a command is just replacing it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


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


def move_uploads(roots: Roots, project: Path, files: Sequence[str]) -> list[Path]:
    """Move uploaded files into the project's own folder, all or none; returns their new paths."""
    landing = Path(os.environ.get("GRADIO_TEMP_DIR", "")).resolve()
    folder, sources = project / UPLOADS_FOLDER, [Path(name) for name in files]
    for source in sources:
        if landing not in source.resolve().parents or not source.is_file():
            raise FileError("ui-upload", f"{source.name} was not uploaded here")
        _refuse_paths_outside(roots, source, folder)
    room = free_disk_bytes(project)
    if room is not None and room - sum(source.stat().st_size for source in sources) < RESERVED_DISK_BYTES:
        raise FileError("disk-full", f"no disk space for {', '.join(source.name for source in sources)}", where=folder)
    moved: list[Path] = []
    for source in sources:
        name = safe_name(source.name)
        if name.lower() == RUN_FILE:
            name = f"uploaded-{name}"  # no folder becomes a project by an upload
        try:
            folder.mkdir(exist_ok=True)
            if folder.is_symlink() or folder.resolve().parent != folder.parent.resolve():
                raise FileError("ui-upload", f"{folder.name} is a link", where=folder)
            # A recording and its subtitles have one stem, which they must keep.
            target = next_free_path(folder / name, any_suffix=False)
            shutil.move(source, target)
            moved.append(target)
            target.chmod(0o644)
        except OSError as error:
            if len(moved) == sources.index(source):
                # On another file system a move is a copy, of which a full disk leaves a part.
                target.unlink(missing_ok=True)
            return_uploads(files, moved)
            raise FileError("ui-upload", f"{source.name}: {format_error_reason(error)}", where=folder) from None
    return moved


def link_uploads(roots: Roots, files: Sequence[str], folder: Path) -> None:
    """Links in a folder to uploaded files, under the names that they will have: they are looked at before they move."""
    landing = Path(os.environ.get("GRADIO_TEMP_DIR", "")).resolve()
    for source in map(Path, files):
        if landing not in source.resolve().parents or not source.is_file():
            raise FileError("ui-upload", f"{source.name} was not uploaded here")
        _refuse_paths_outside(roots, source, folder)
        next_free_path(folder / safe_name(source.name), any_suffix=False).symlink_to(source.resolve())


def return_uploads(files: Sequence[str], moved: Sequence[Path]) -> None:
    """Undo `move_uploads` if what follows it is refused: a second try finds the files where the browser named them."""
    for name, path in zip(files, moved, strict=False):
        with contextlib.suppress(OSError):
            shutil.move(path, name)
    for folder in {path.parent for path in moved}:
        with contextlib.suppress(OSError):
            folder.rmdir()  # only if nothing else is in it


def check_uploaded_lists(roots: Roots, places: Sequence[str], encoding: str) -> None:
    """Check uploaded lists again before they are read in another encoding, in which they may name other files."""
    for place in (roots.home / name for name in places):
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if UPLOADS_FOLDER in roots.parts(path.parent) and path.is_file():
                _refuse_paths_outside(roots, path, path.parent, encoding)


def next_free_path(path: Path, *, any_suffix: bool = True) -> Path:
    """The path, or the next one with a number at which nothing exists; with `any_suffix` nothing of the same stem."""
    number, tried = 1, path
    while os.path.lexists(tried) or (any_suffix and any(tried.parent.glob(f"{glob.escape(tried.stem)}.*"))):
        number += 1
        tried = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return tried


def _refuse_paths_outside(roots: Roots, source: Path, folder: Path, encoding: str | None = None) -> None:
    """A list that came through the browser may name files inside the roots only, as the browser itself may."""
    for name, is_voice in _file_names_in(source, encoding):
        if ".." not in name and not name.startswith(("/", "\\")):
            continue  # cannot leave the folder in which it is looked up
        # Sounds of a list are looked up from its folder, voices of a table for speaking from where commands run.
        plain = name.replace("\\", "/")
        path = roots.home / plain if is_voice else find_audio_file(folder, name) or folder / plain
        try:
            roots.resolve_inside(path)
        except FileError:
            found = f"{source.name} names {name!r:.100}, outside the folders that the web UI may read"
            raise FileError(
                "ui-upload", found, cure="use files inside these folders, or upload the named files, too."
            ) from None


def _file_names_in(source: Path, encoding: str | None) -> Iterator[tuple[str, bool]]:
    """Every file that a list names, and whether as a voice; none if it cannot be read, which its import reports."""
    name = safe_name(source.name).lower()
    with contextlib.suppress(VoxgraftError):
        if name.endswith(COLUMNAR_SUFFIXES):
            yield from ((audio, False) for audio in read_arrow_audio_names(source))
        elif name == KALDI_AUDIO:
            yield from ((audio, False) for audio in read_kaldi_audio_names(source, encoding))
        elif is_list_name(name):
            rows = read_transcript_list(source, encoding)
            yield from ((row.audio, False) for row in rows if isinstance(row, TranscriptRow))
    # Lines of JSON may hold paths whatever the file is called: of clips, and of codes of other trainers' pairs.
    with contextlib.suppress(VoxgraftError):
        for _, line in read_lines(source):
            with contextlib.suppress(VoxgraftError):
                values = parse_json(line, source.name) if line.startswith("{") else None
                for key, value in values.items() if isinstance(values, dict) else ():
                    is_path = key.lower().endswith("_path") or key.lower() in COLUMN_ALIASES["audio"]
                    if is_path and isinstance(value, str):
                        yield value, False
    if name.endswith(".tsv"):  # a table for speaking has a column of voices
        with contextlib.suppress(VoxgraftError):
            table = [line.split("\t") for line in text_lines(read_encoded_text(source)) if line.strip()]
            at = table[0].index("voice") if table and "voice" in table[0] else None
            yield from ((cells[at].strip(), True) for cells in table[1:] if at is not None and at < len(cells))
