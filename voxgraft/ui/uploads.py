"""Uploaded files: from where the browser left them into the project, under a safe name.

Looks into them only whether they name files outside the roots.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from voxgraft.errors import FileError, VoxgraftError
from voxgraft.files import format_error_reason, free_disk_bytes, parse_json, read_lines, text_lines
from voxgraft.importing.columns import COLUMNAR_SUFFIXES, read_arrow_audio_names
from voxgraft.importing.encodings import read_encoded_text
from voxgraft.importing.lists import read_transcript_list
from voxgraft.importing.rows import COLUMN_ALIASES, TranscriptRow, find_audio_file
from voxgraft.importing.sources import TABLE_SUFFIXES
from voxgraft.run import RUN_FILE
from voxgraft.ui.roots import Roots, safe_name

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
