"""What the tabs read of a project by themselves: its language and base, its datasets and clips. Changes nothing."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from voxgraft.bases import resolve_base_folder
from voxgraft.config import parse_settings, read_settings_values
from voxgraft.errors import FileError, VoxgraftError
from voxgraft.importing.manifest import MANIFEST_NAME, ManifestClip, read_manifest
from voxgraft.preparing.choosing import resolve_manifest_path
from voxgraft.run import RUN_FILE, RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.ui.uploads import UPLOADS_FOLDER

LEGACY_CLIPS_FOLDER = "clips"
"""Where pages of earlier versions kept the clips."""
MAX_CLIPS = 2000


def load_run_settings(project: Path) -> RunSettings:
    """What the project's run.yaml says."""
    path = project / RUN_FILE
    try:
        status = path.stat()
    except OSError:
        raise FileError("file-missing", f"{project} has no {RUN_FILE}", where=path) from None
    return _load_run_settings_cached(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=32)
def _load_run_settings_cached(path: Path, _changed: int, _size: int) -> RunSettings:
    """Read once and kept until the file changes: a page asks two dozen times when a project is opened."""
    return parse_settings(RunSettings, read_settings_values(RunSettings, path), path)


def run_language(project: Path) -> str | None:
    """The new language, where run.yaml names it."""
    try:
        return load_run_settings(project).language
    except VoxgraftError:
        return None


def run_base_folder(project: Path) -> Path | None:
    """The base's folder, where run.yaml names it."""
    try:
        named = load_run_settings(project).base
    except VoxgraftError:
        return None
    return resolve_base_folder(named) if named is not None else None


def run_yaml_stamp(project: Path) -> str:
    """Changes when run.yaml does."""
    try:
        status = (project / RUN_FILE).stat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def run_dataset_folder(project: Path) -> Path:
    """Where the project's own dataset is, or will be: the same place that `run_pipeline` and `prepare` take."""
    try:
        named = load_run_settings(project).data.dataset
    except VoxgraftError:
        named = None
    folder = resolve_manifest_path(named, RunFolder(project).data).parent
    old = project / LEGACY_CLIPS_FOLDER
    is_old = named is None and not (folder / MANIFEST_NAME).is_file() and (old / MANIFEST_NAME).is_file()
    return old if is_old else folder


def recording_sources(project: Path) -> list[Path] | None:
    """Where recordings come from: what run.yaml names, or the folder of uploaded ones, once there is one."""
    try:
        named = load_run_settings(project).data.sources
    except VoxgraftError:
        named = ()
    folder = project / UPLOADS_FOLDER
    return list(named) or ([folder] if folder.is_dir() else None)


def default_texts(project: Path) -> list[Path] | None:
    """What the language is learnt from unless run.yaml says it: the dataset's texts, where there are any."""
    try:
        if load_run_settings(project).texts:
            return None
    except VoxgraftError:
        return None
    manifest = run_dataset_folder(project) / MANIFEST_NAME
    return [manifest] if manifest.is_file() else None


def paths_named_by_run(project: Path) -> dict[str, list[Path]]:
    """What forms are filled with because run.yaml names it, also outside the roots; by setting."""
    try:
        settings = load_run_settings(project)
    except VoxgraftError:
        return {}
    dataset = run_dataset_folder(project)
    return {
        "dataset": [dataset],
        "manifest": [dataset],
        "sources": [*settings.data.sources],
        "texts": [*settings.texts, dataset / MANIFEST_NAME],
    }


def modified_time(path: Path) -> float:
    """When a file was last written; long ago, where a verb is just replacing it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def find_grown_tokenizer(project: Path) -> Path | None:
    """The tokenizer of the project's graft."""
    graft = RunFolder(project).graft
    return next((path for path in (graft / "tokenizer.json", graft / "tokenizer.model") if path.is_file()), None)


def read_first_clips(dataset: Path) -> list[ManifestClip]:
    """The first clips of a dataset."""
    found = []
    for clip in read_manifest(dataset / "manifest.jsonl"):
        found.append(clip)
        if len(found) >= MAX_CLIPS:
            break
    return found
