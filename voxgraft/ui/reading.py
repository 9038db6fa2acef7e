"""What the tabs read of a project by themselves: its language and base, its datasets and clips. Changes nothing."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from voxgraft.bases import base_folder
from voxgraft.config import read_settings, settings_from
from voxgraft.errors import FileError, VoxgraftError
from voxgraft.importing.manifest import ManifestClip, read_manifest
from voxgraft.run import RUN_FILE, RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.ui.uploads import UPLOADS

CLIPS = "clips"
"""The dataset that a project makes by itself."""
MAX_CLIPS = 2000


def run_settings(project: Path) -> RunSettings:
    """What the project's run.yaml says."""
    path = project / RUN_FILE
    try:
        status = path.stat()
    except OSError:
        raise FileError("file-missing", f"{project} has no {RUN_FILE}", where=path) from None
    return _run_settings(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=32)
def _run_settings(path: Path, _changed: int, _size: int) -> RunSettings:
    """Read once and kept until the file changes: a page asks two dozen times when a project is opened."""
    return settings_from(RunSettings, read_settings(RunSettings, path), path)


def language(project: Path) -> str | None:
    """The new language, where run.yaml names it."""
    try:
        return run_settings(project).language
    except VoxgraftError:
        return None


def base(project: Path) -> Path | None:
    """The base's folder, where run.yaml names it."""
    try:
        named = run_settings(project).base
    except VoxgraftError:
        return None
    return base_folder(named) if named is not None else None


def clips_folder(project: Path) -> Path:
    """Where the project's own dataset is, or will be."""
    return project / CLIPS


def uploads(project: Path) -> list[Path] | None:
    """The folder of uploaded recordings, once there is one."""
    folder = project / UPLOADS
    return [folder] if folder.is_dir() else None


def texts(project: Path) -> list[Path] | None:
    """What the language is learnt from unless run.yaml says it: the dataset's texts, where there are any."""
    try:
        if run_settings(project).texts:
            return None
    except VoxgraftError:
        return None
    manifest = clips_folder(project) / "manifest.jsonl"
    return [manifest] if manifest.is_file() else None


def grown_tokenizer(project: Path) -> Path | None:
    """The tokenizer of the project's graft."""
    graft = RunFolder(project).graft
    return next((path for path in (graft / "tokenizer.json", graft / "tokenizer.model") if path.is_file()), None)


def clips(dataset: Path) -> list[ManifestClip]:
    """The first clips of a dataset."""
    found = []
    for clip in read_manifest(dataset / "manifest.jsonl"):
        found.append(clip)
        if len(found) >= MAX_CLIPS:
            break
    return found
