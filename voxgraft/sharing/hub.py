"""Model hubs through `huggingface_hub`, where that is installed and the network allows; else an error that says which.

The only module that talks to the network.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from voxgraft.errors import ConfigError, FileError
from voxgraft.files import build_write_error, format_error_reason
from voxgraft.sharing.zips import normalize_file_name

__all__ = ["HubFile", "download_from_hub", "download_hub_file", "is_hub_repository", "list_hub_files", "upload_to_hub"]

HUB_PREFIX = "hub:"
_REPOSITORY = re.compile(r"(?:hub:)?([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})")


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file as a hub lists it."""

    name: str
    num_bytes: int
    sha256: str | None
    """Of large files; small ones have a git id only."""
    git_id: str | None


def is_hub_repository(text: str) -> bool:
    """Whether a text can be the name of a repository: OWNER/NAME, or hub:OWNER/NAME."""
    return _REPOSITORY.fullmatch(text) is not None


def parse_hub_repository(text: str) -> str:
    """OWNER/NAME."""
    found = _REPOSITORY.fullmatch(text)
    if found is None:
        raise ConfigError("hub-name", f"{text!r:.80} is no name of a repository", expected="OWNER/NAME")
    return found[1]


def upload_to_hub(folder: Path, repository: str, *, private: bool, leave_out: Collection[str] = ()) -> str:
    """Upload a folder; the address of the commit."""
    with _hub_client("send to", repository) as hub:
        api = hub.HfApi()
        api.create_repo(parse_hub_repository(repository), private=private, exist_ok=True)
        done = api.upload_folder(
            repo_id=parse_hub_repository(repository),
            folder_path=folder,
            commit_message="voxgraft push",
            ignore_patterns=[glob.escape(name) for name in sorted(leave_out)],
        )
    return str(getattr(done, "commit_url", done))


def download_from_hub(repository: str, folder: Path, revision: str | None) -> None:
    """Download a repository into a folder."""
    seen: dict[str, str] = {}
    for one in list_hub_files(repository, revision):  # names that lead out of it are refused before anything is written
        if (other := seen.setdefault(normalize_file_name(one.name), one.name)) != one.name:
            found = f"{repository} names {other!r:.80} and {one.name!r:.80}, which are one file on some systems"
            raise FileError("hub-refused", found, cure="tell its owners, and fetch nothing from there.")
    with _hub_client("fetch", repository) as hub:
        hub.snapshot_download(parse_hub_repository(repository), revision=revision, local_dir=folder)
    cache = folder / ".cache"
    if cache.is_dir():
        import shutil

        shutil.rmtree(cache)


def list_hub_files(repository: str, revision: str | None = None) -> list[HubFile]:
    """What a repository holds."""
    with _hub_client("look at", repository) as hub:
        info = hub.HfApi().model_info(parse_hub_repository(repository), revision=revision, files_metadata=True)
    for one in info.siblings or []:
        name = PurePosixPath(one.rfilename)
        if name.is_absolute() or ".." in name.parts or "\\" in one.rfilename:
            found = f"{repository} names a file {one.rfilename!r:.80}, which lies outside of it"
            raise FileError("hub-refused", found, cure="tell its owners, and fetch nothing from there.")
    return [
        HubFile(one.rfilename, int(one.size or 0), getattr(one.lfs, "sha256", None), None if one.lfs else one.blob_id)
        for one in info.siblings or []
    ]


def download_hub_file(repository: str, name: str, folder: Path, revision: str | None = None) -> Path:
    """One file into a folder, under its own name; what was fetched of it before is not fetched again."""
    with _hub_client("fetch", f"{repository} {name}") as hub:
        return Path(hub.hf_hub_download(parse_hub_repository(repository), name, revision=revision, local_dir=folder))


@contextmanager
def _hub_client(doing: str, what: str) -> Iterator[Any]:
    try:
        hub = import_module("huggingface_hub")
        errors = import_module("huggingface_hub.errors")
    except ModuleNotFoundError:
        raise FileError("hub-missing", f"cannot {doing} {what}: huggingface_hub is not installed") from None
    # Which library it speaks through changes with its version; its own error tells.
    network: tuple[type[BaseException], ...] = (OSError, *errors.HfHubHTTPError.__bases__)
    refusals = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.GatedRepoError)
    try:
        yield hub
    except (*refusals, errors.HfHubHTTPError, errors.HFValidationError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        code = "hub-refused" if status is None or status < 500 else "hub-unreachable"
        raise FileError(code, f"cannot {doing} {what}: {format_error_reason(error)}") from None
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, *network) as error:
        if isinstance(error, OSError) and error.filename is not None:  # of our own disk, and not of the network
            raise build_write_error(error, Path(str(error.filename))) from None
        raise FileError("hub-unreachable", f"cannot {doing} {what}: {format_error_reason(error)}") from None
