"""What the tabs read of a project by themselves: its language and base, its datasets and clips. Changes nothing."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from voxgraft.bases import base_folder
from voxgraft.config import read_settings, settings_from
from voxgraft.errors import FileError, VoxgraftError
from voxgraft.importing.manifest import NAME, ManifestClip, read_manifest
from voxgraft.preparing.choosing import manifest_path
from voxgraft.run import RUN_FILE, RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.ui.uploads import UPLOADS

OLD_CLIPS = "clips"
"""Where pages of earlier versions kept the clips."""
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


def stamp(project: Path) -> str:
    """Changes when run.yaml does."""
    try:
        status = (project / RUN_FILE).stat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def clips_folder(project: Path) -> Path:
    """Where the project's own dataset is, or will be: the same place that `go` and `prepare` take."""
    try:
        named = run_settings(project).data.dataset
    except VoxgraftError:
        named = None
    folder = manifest_path(named, RunFolder(project).data).parent
    old = project / OLD_CLIPS
    is_old = named is None and not (folder / NAME).is_file() and (old / NAME).is_file()
    return old if is_old else folder


def sources(project: Path) -> list[Path] | None:
    """Where recordings come from: what run.yaml names, or the folder of uploaded ones, once there is one."""
    try:
        named = run_settings(project).data.sources
    except VoxgraftError:
        named = ()
    folder = project / UPLOADS
    return list(named) or ([folder] if folder.is_dir() else None)


def texts(project: Path) -> list[Path] | None:
    """What the language is learnt from unless run.yaml says it: the dataset's texts, where there are any."""
    try:
        if run_settings(project).texts:
            return None
    except VoxgraftError:
        return None
    manifest = clips_folder(project) / NAME
    return [manifest] if manifest.is_file() else None


def named_by_run(project: Path) -> dict[str, list[Path]]:
    """What forms are filled with because run.yaml names it, also outside the roots; by setting."""
    try:
        settings = run_settings(project)
    except VoxgraftError:
        return {}
    dataset = clips_folder(project)
    return {
        "dataset": [dataset],
        "manifest": [dataset],
        "sources": [*settings.data.sources],
        "texts": [*settings.texts, dataset / NAME],
    }


def changed_at(path: Path) -> float:
    """When a file was last written; long ago, where a verb is just replacing it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


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
