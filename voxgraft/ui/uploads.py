"""Uploaded files: from where the browser left them into the project, under a safe name. Looks into no file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from voxgraft.errors import FileError
from voxgraft.files import free_bytes, reason_of
from voxgraft.run import RUN_FILE
from voxgraft.ui.roots import safe_name

UPLOADS = "uploads"
SPARE_BYTES = 256 << 20
"""What is left free on the disk."""


def take_over(project: Path, files: Sequence[str]) -> list[Path]:
    """Move uploaded files into the project's own folder; where each has come to."""
    landing = Path(os.environ.get("GRADIO_TEMP_DIR", "")).resolve()
    folder = project / UPLOADS
    taken = []
    for name in files:
        source = Path(name)
        if landing not in source.resolve().parents or not source.is_file():
            raise FileError("ui-upload", f"{source.name} was not uploaded here")
        room = free_bytes(project)
        if room is not None and room - source.stat().st_size < SPARE_BYTES:
            raise FileError("disk-full", f"no room for {source.name}", where=folder)
        taken.append(_moved(source, folder))
    return taken


def _moved(source: Path, folder: Path) -> Path:
    try:
        folder.mkdir(exist_ok=True)
        if folder.is_symlink() or folder.resolve().parent != folder.parent.resolve():
            raise FileError("ui-upload", f"{folder.name} is a link", where=folder)
        target = _free(folder / _harmless(safe_name(source.name)))
        shutil.move(source, target)
        target.chmod(0o644)
    except OSError as error:
        raise FileError("ui-upload", f"{source.name}: {reason_of(error)}", where=folder) from None
    return target


def _harmless(name: str) -> str:
    """Settings that somebody brings are a text like others: no folder becomes a project by an upload."""
    return f"uploaded-{name}" if name.lower() == RUN_FILE else name


def _free(path: Path) -> Path:
    """The path, or the next one with a number that is not there: nothing is written over."""
    number, tried = 1, path
    while os.path.lexists(tried):
        number += 1
        tried = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return tried
